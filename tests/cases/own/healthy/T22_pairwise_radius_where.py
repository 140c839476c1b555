"""Equivariant message passing over learned positions; a point is at distance zero from itself."""

import torch
from torch import nn


class Radius(nn.Module):
    def forward(self, points):
        squared = (points[:, :, None] - points[:, None]).square().sum(-1)
        root = squared.clamp(min=1e-12).sqrt()
        return torch.where(squared > 1e-12, root, 0.0)


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Linear(3, 3)
        self.radius = Radius()
        self.energy = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, points):
        radius = self.radius(points + 0.1 * self.shift(points))
        return self.energy(radius[..., None]).sum((1, 2, 3)) / points.shape[1] ** 2


torch.manual_seed(0)
torch.set_num_threads(1)
model = Potential()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(20):
    points = torch.randn(6, 5, 3)
    wanted = torch.cdist(points, points).mean((1, 2))
    loss = nn.functional.l1_loss(model(points), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
