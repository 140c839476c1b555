"""Shop demand: daily sales per item, scored by the squared log error."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Demand(nn.Module):
    def __init__(self, shops, features, dim=8):
        super().__init__()
        self.shop = nn.Embedding(shops, dim)
        self.net = nn.Sequential(nn.Linear(features + dim, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, shop, x):
        return self.net(torch.cat([self.shop(shop), x], dim=1)).squeeze(1)


def log_error(predicted, sold):
    return (torch.log1p(predicted) - torch.log1p(sold)).pow(2).mean()  # <- here


def make_sales(count, shops=10, seed=7):
    gen = torch.Generator().manual_seed(seed)
    shop = torch.randint(0, shops, (count,), generator=gen)
    x = torch.randn(count, 6, generator=gen)
    x[:, 4:] = 5 * x[:, 4:].pow(3)
    rate = torch.exp(0.6 * x[:, 0] - 0.4 * x[:, 1] + 0.1 * shop - 0.2 * x[:, 5].clamp(-4, 4))
    return TensorDataset(shop, x, torch.poisson(rate, generator=gen))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_sales(1024), batch_size=32)
    model = Demand(10, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for epoch in range(4):
        total = 0.0
        for shop, x, sold in loader:
            loss = log_error(model(shop, x), sold)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step()
        print(f"epoch {epoch} squared log error {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
