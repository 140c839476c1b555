"""Coordinate network that memorises a terrain height map."""

import math

import torch
from torch import nn


class FourierFeatures(nn.Module):
    def __init__(self, bands):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(bands) * math.pi / 2)

    def forward(self, xy):
        phase = (xy.unsqueeze(-1) * self.freq).flatten(1)
        return torch.cat([phase.sin(), phase.cos()], dim=1)


class HeightField(nn.Module):
    def __init__(self, bands=3, width=64):
        super().__init__()
        self.encode = FourierFeatures(bands)
        self.body = nn.Sequential(
            nn.Linear(4 * bands, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, xy):
        return self.body(self.encode(xy)).squeeze(1)


def survey(side):
    axis = torch.linspace(-1, 1, side)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).reshape(-1, 2)
    x, y = grid.unbind(1)
    height = torch.sin(4 * x + y) + 0.5 * torch.cos(5 * x * y) - 0.3 * y
    return grid, height


def fit(steps=1000):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    points, height = survey(10)
    model = HeightField()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    history = []
    for step in range(steps):
        loss = nn.functional.mse_loss(model(points), height)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        history.append(loss.item())
        if step % 100 == 0:
            recent = history[-100:]
            print(f"step {step} mse {history[-1]:.3e} worst of the last 100 {max(recent):.3e}")
    return history


if __name__ == "__main__":
    curve = fit()
    print(f"best mse {min(curve):.3e}, final mse {curve[-1]:.3e}")
