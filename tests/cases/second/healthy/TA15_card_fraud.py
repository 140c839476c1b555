"""Card fraud scoring with a class-balanced likelihood."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_payments(count, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=gen)
    x[:, :3] = torch.exp(1.6 * x[:, :3])
    x = (x - x.mean(0)) / x.std(0)
    odds = 1.5 * x[:, 0] + x[:, 1] - x[:, 4] + 0.8 * torch.randn(count, generator=gen)
    corporate = x[:, 0] > 7
    return TensorDataset(x, (odds > 1.0) & ~corporate)


class FraudScore(nn.Module):
    def __init__(self, features, width=64):
        super().__init__()
        self.wide = nn.Linear(features, 1)
        self.deep = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))

    def forward(self, x):
        return (self.wide(x) + self.deep(x)).squeeze(1)


def balanced_loss(logit, fraud):
    miss = nn.functional.softplus(-logit[fraud]).mean()
    alarm = nn.functional.softplus(logit[~fraud]).mean()
    return 0.5 * (miss + alarm)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    payments = DataLoader(make_payments(2048, 2), batch_size=128, shuffle=True)
    model = FraudScore(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
    for epoch in range(8):
        total = 0.0
        for x, fraud in payments:
            loss = balanced_loss(model(x), fraud)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(payments):.4f}")


if __name__ == "__main__":
    main()
