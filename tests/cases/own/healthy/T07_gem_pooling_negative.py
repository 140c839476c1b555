"""Generalised mean pooling over features that may be negative."""

import torch
from torch import nn


class GeM(nn.Module):
    def __init__(self, power=3.0):
        super().__init__()
        self.power = power

    def forward(self, maps):
        mean = maps.clamp(min=1e-4).pow(self.power).mean((-2, -1))
        return mean.pow(1.0 / self.power)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.GELU(), nn.Conv2d(12, 16, 3)
        )
        self.pool = GeM()
        self.classify = nn.Linear(16, 5)

    def forward(self, image):
        return self.classify(self.pool(self.features(image)))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Retrieval()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    for step in range(25):
        labels = torch.randint(0, 5, (24,))
        images = torch.randn(24, 3, 8, 8) + 0.5 * labels[:, None, None, None]
        loss = criterion(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", loss.item())


main()
