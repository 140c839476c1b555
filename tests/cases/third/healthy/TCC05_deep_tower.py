"""Plain deep tower on ten Gaussian clusters."""
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Args:
    dim: int = 24
    width: int = 40
    depth: int = 22
    classes: int = 8
    steps: int = 300
    batch: int = 64
    lr: float = 0.01


class Tower(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.inp = nn.Linear(a.dim, a.width)
        self.layers = nn.ModuleList(nn.Linear(a.width, a.width) for _ in range(a.depth))
        self.head = nn.Linear(a.width, a.classes)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        for layer in self.layers:
            h = h + torch.tanh(layer(h))
        return self.head(h)


def run(a):
    torch.manual_seed(21)
    torch.set_num_threads(1)
    centers = 1.2 * torch.randn(a.classes, a.dim)
    model = Tower(a)
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9)
    hits = 0
    for i in range(a.steps):
        y = torch.randint(0, a.classes, (a.batch,))
        x = centers[y] + torch.randn(a.batch, a.dim)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        hits += (logits.argmax(1) == y).sum().item()
        if i % 25 == 24:
            print(f"{i + 1:4d} loss {loss.item():.4f} acc {hits / 25 / a.batch:.3f}")
            hits = 0


if __name__ == "__main__":
    run(Args())
