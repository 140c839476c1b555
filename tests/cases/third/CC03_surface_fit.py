"""Fit a smooth 2-d surface with a tanh network, full batch."""
import torch
from torch import nn

torch.manual_seed(5)
torch.set_num_threads(1)

side = torch.linspace(-1, 1, 10)
grid = torch.cartesian_prod(side, side)
height = (torch.sin(3 * grid[:, :1]) * grid[:, 1:]) + 0.3 * grid[:, :1] ** 2

net = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-2, betas=(0.9, 0.999))

for it in range(400):
    optimizer.zero_grad()
    loss = (net(grid) - height).square().mean()
    loss.backward()
    optimizer.step()
    if it % 20 == 0:
        print(f"iter {it:4d} loss {loss.item():.3e}")
