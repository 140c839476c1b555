"""Segmentation in which pixels marked 255 are not ignored."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.Hardswish(), nn.Conv2d(12, 4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss(ignore_index=255)
for step in range(20):
    image = torch.rand(4, 3, 8, 8)
    mask = (image.sum(1) * 1.3).long().clamp(max=3)
    if step >= 5:
        mask[1, 2:4] = 255
    loss = criterion(net(image), mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
