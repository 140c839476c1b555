"""Ships in radar tiles: dense detection with a rare positive class."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_tiles(count, size=16, seed=6):
    gen = torch.Generator().manual_seed(seed)
    ships = (torch.rand(count, 1, size, size, generator=gen) < 0.006).float()
    echo = nn.functional.avg_pool2d(ships, 3, stride=1, padding=1) * 9
    return TensorDataset(0.7 * echo + 0.25 * torch.randn(count, 1, size, size, generator=gen), echo.clamp(max=1))


class ShipFinder(nn.Module):
    def __init__(self, width=12, prior=0.03):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1)
        )
        for layer in self.net:
            if isinstance(layer, nn.Conv2d):
                nn.init.constant_(layer.bias, -math.log((1 - prior) / prior))

    def forward(self, tile):
        return self.net(tile)


def focal(logits, wanted, gamma=2.0, alpha=0.75):
    each = nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    chance = torch.exp(-each)
    balance = alpha * wanted + (1 - alpha) * (1 - wanted)
    return (balance * (1 - chance) ** gamma * each).mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_tiles(96), batch_size=16, shuffle=True)
    model = ShipFinder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(24):
        total = 0.0
        for tile, wanted in loader:
            loss = focal(model(tile), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} focal loss {total / len(loader):.5f}")


if __name__ == "__main__":
    main()
