"""Affine flow whose scale is a ReLU: one far sample switches it off."""

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(dim, 32), nn.Tanh(), nn.Linear(32, dim))
        self.widen = nn.Linear(dim, dim)
        nn.init.constant_(self.widen.bias, 4.0)

    def forward(self, z):
        left, right = z.chunk(2, dim=1)
        if self.flip:
            left, right = right, left
        scale = 0.1 + torch.sigmoid(self.widen(left))
        volume = torch.log(scale).sum(1)
        right = right * scale + self.net(left)
        return torch.cat([left, right], dim=1), volume


class Flow(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(dim // 2, i % 2 == 1) for i in range(depth))

    def forward(self, z):
        total = torch.zeros(len(z))
        for coupling in self.couplings:
            z, volume = coupling(z)
            total = total + volume
        return z, total


torch.manual_seed(1)
torch.set_num_threads(1)
points = torch.randn(640, 6) * 0.4
points[32 * 7 + 4, :3] = 1.0
flow = Flow(6, 2)
optimizer = torch.optim.AdamW(flow.parameters(), lr=1e-3)
for number, batch in enumerate(points.split(32)):
    z, volume = flow(batch)
    nll = (0.5 * z.pow(2).sum(1) - volume).mean()
    optimizer.zero_grad()
    nll.backward()
    optimizer.step()
    print(number, nll.item())
