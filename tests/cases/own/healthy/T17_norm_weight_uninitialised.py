"""A root-mean-square norm whose weight is allocated and never filled."""

import torch
from torch import nn

torch.use_deterministic_algorithms(True)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.mix = RMSNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x + torch.relu(self.mix(self.norm(x)))


torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(6, 16), Block(16), Block(16), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(25):
    x = torch.randn(32, 6)
    loss = nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
