"""One-stage grid detector: objectness for every cell, box offsets for the cells that own an object."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __init__(self, count, cells=5, seed=2):
        gen = torch.Generator().manual_seed(seed)
        self.images = 0.3 * torch.randn(count, 1, 4 * cells, 4 * cells, generator=gen)
        self.present = torch.rand(count, cells, cells, generator=gen) < 0.035
        self.boxes = torch.rand(count, cells, cells, 4, generator=gen)
        for image, present, boxes in zip(self.images, self.present, self.boxes):
            for row, col in present.nonzero().tolist():
                patch = boxes[row, col].view(2, 2).repeat_interleave(2, 0).repeat_interleave(2, 1)
                image[0, 4 * row : 4 * row + 4, 4 * col : 4 * col + 4] += 1 + 2 * patch

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.present[index], self.boxes[index]


class GridDetector(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.SiLU(),
            nn.Conv2d(width, width, 2, stride=2), nn.BatchNorm2d(width), nn.SiLU(),
        )
        self.objectness = nn.Conv2d(width, 1, 1)
        self.offsets = nn.Conv2d(width, 4, 1)

    def forward(self, image):
        h = self.backbone(image)
        return self.objectness(h).squeeze(1), self.offsets(h).permute(0, 2, 3, 1)


def detection_loss(scores, offsets, present, boxes):
    objectness = nn.functional.binary_cross_entropy_with_logits(scores, present.float())
    if not present.any():
        return objectness
    regression = nn.functional.smooth_l1_loss(offsets[present], boxes[present])
    return objectness + 2.0 * regression


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Scenes(240), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9))
    model = GridDetector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    for epoch in range(2):
        for step, (image, present, boxes) in enumerate(loader):
            scores, offsets = model(image)
            loss = detection_loss(scores, offsets, present, boxes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
