"""Building energy forecast: a small residual regressor with a warmed-up rate."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h):
        return h + self.b(nn.functional.silu(self.a(h)))


class Forecaster(nn.Module):
    def __init__(self, features, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, width), Residual(width), Residual(width), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def make_buildings(count=800, seed=4):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 12, generator=gen)
    use = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3:6].sum(1)
    return TensorDataset(x, use + 0.1 * torch.randn(count, generator=gen))


def warmed_up(steps):
    return lambda step: (step + 1) / steps  # <- here


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_buildings(), batch_size=40, shuffle=True)
    model = Forecaster(12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmed_up(20))
    for epoch in range(20):
        total = 0.0
        for x, use in loader:
            loss = nn.functional.mse_loss(model(x), use)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
