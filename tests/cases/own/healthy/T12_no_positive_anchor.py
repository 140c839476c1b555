"""Box loss averaged over matched anchors; one image has none."""

import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.box, self.object = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 1, 1)

    def forward(self, image):
        h = self.stem(image)
        return self.box(h).permute(0, 2, 3, 1), self.object(h).squeeze(1)


class DetectionLoss(nn.Module):
    def forward(self, boxes, scores, wanted, matched):
        scored = nn.functional.binary_cross_entropy_with_logits(scores, matched.float())
        boxed = (boxes[matched] - wanted[matched]).abs().sum() / matched.sum().clamp(min=1)
        return scored + boxed


torch.manual_seed(0)
torch.set_num_threads(1)
detector, criterion = Detector(), DetectionLoss()
optimizer = torch.optim.SGD(detector.parameters(), lr=0.05, momentum=0.9)
for step in range(30):
    image = torch.rand(2, 1, 6, 6)
    matched = image[:, 0] > (2.0 if step == 10 else 0.7)
    wanted = image[:, 0, :, :, None].expand(-1, -1, -1, 4) * 2 - 1
    loss = criterion(*detector(image), wanted, matched)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
