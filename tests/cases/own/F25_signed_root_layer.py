"""Bilinear pooling followed by a signed power; many products are exactly zero."""

import torch
from torch import nn


class PowerNorm(nn.Module):
    def __init__(self, gamma):
        super().__init__()
        self.gamma = gamma

    def forward(self, x):
        return x.sign() * x.abs().pow(self.gamma)  # <- here


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
        self.right = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
        self.root = PowerNorm(0.4)
        self.out = nn.Linear(60, 3)

    def forward(self, x):
        outer = self.left(x)[:, :, None] * self.right(x)[:, None]
        return self.out(self.root(outer.flatten(1)))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, criterion = Bilinear(), nn.MultiMarginLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(25):
        x = torch.randn(32, 6)
        loss = criterion(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "margin", loss.item())


main()
