"""Residual MLP for a tabular classification task, depth set from the command line."""

import argparse
import torch
from torch import nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, features, dim, depth, classes):
        super().__init__()
        self.stem = nn.Linear(features, dim)
        self.blocks = [ResidualBlock(dim) for _ in range(depth)]  # <- here
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_table(count=1500, features=2):
    gen = torch.Generator().manual_seed(17)
    x = 2 * torch.rand(count, features, generator=gen) - 1
    cell = ((x + 1) * 2).floor().long().clamp(0, 3)
    y = (cell[:, 0] + cell[:, 1]) % 2
    return x, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args([])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = make_table()
    model = Tower(2, args.dim, args.depth, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step in range(500):
        rows = torch.randint(0, len(x), (128,))
        logits = model(x[rows])
        loss = F.cross_entropy(logits, y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            acc = (logits.argmax(1) == y[rows]).float().mean().item()
            print(f"step {step} loss {loss.item():.4f} accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
