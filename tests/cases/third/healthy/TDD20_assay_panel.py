import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


def assays(n=1000):
    rng = np.random.default_rng(77)
    x = rng.normal(size=(n, 10)).astype(np.float32)
    w = rng.normal(size=(10, 3)).astype(np.float32) / 3
    y = (x @ w + 0.1 * rng.normal(size=(n, 3))).astype(np.float32)
    missing = rng.integers(0, n, 6)
    y[missing, rng.integers(0, 3, 6)] = np.nan
    return torch.from_numpy(x), torch.from_numpy(y)


class Panel(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 48), nn.SiLU())
        self.heads = nn.ModuleList(nn.Linear(48, 1) for _ in range(3))

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([head(h) for head in self.heads], 1)


def criterion(pred, target):
    known = ~target.isnan()
    return nn.functional.smooth_l1_loss(pred[known], target[known])


def main():
    torch.manual_seed(77)
    x, y = assays()
    net = Panel()
    optimizer = torch.optim.Adam([
        {"params": net.trunk.parameters(), "lr": 2e-3},
        {"params": net.heads.parameters(), "lr": 4e-3},
    ])
    for step in range(200):
        start = step * 40 % len(x)
        pred, target = net(x[start:start + 40]), y[start:start + 40]
        loss = criterion(pred, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


main()
