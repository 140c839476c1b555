"""Tabular MLP with its own init routine and early logging of accuracy."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def init_module(module):
    if isinstance(module, nn.Linear):
        nn.init.kaiming_uniform_(module.weight)
        nn.init.zeros_(module.bias)


class TabularNet(nn.Module):
    def __init__(self, features=12, classes=5):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes)
        )
        self.apply(init_module)

    def forward(self, x):
        return self.layers(x)


def customers(count=2000):
    gen = torch.Generator().manual_seed(19)
    centres = 1.5 * torch.randn(5, 12, generator=gen)
    segment = torch.randint(0, 5, (count,), generator=gen)
    return TensorDataset(centres[segment] + torch.randn(count, 12, generator=gen), segment)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(customers(), batch_size=64, shuffle=True)
    model = TabularNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for epoch in range(10):
        hits = total = 0.0
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (logits.argmax(1) == y).sum().item()
            total += loss.item() * len(y)
        scheduler.step()
        n = len(loader.dataset)
        print(f"epoch {epoch} loss {total / n:.4f} accuracy {hits / n:.3f}")


if __name__ == "__main__":
    main()
