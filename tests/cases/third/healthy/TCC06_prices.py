"""Predict three positive quantities of a listing with a small regressor."""
import torch
from torch import nn


class Regressor(nn.Module):
    def __init__(self, features=10, hidden=32, outputs=3):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, outputs)
        self.positive = nn.Softplus()

    def forward(self, x):
        return self.positive(self.out(self.hidden(x)))


def listings(n, gen):
    x = torch.randn(n, 10, generator=gen)
    base = torch.stack([x[:, :4].sum(1), x[:, 3:7].sum(1), x[:, 6:].sum(1)], 1)
    return x, nn.functional.softplus(base) + 0.05 * torch.rand(n, 3, generator=gen)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(1)
    x, y = listings(1024, gen)
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    step = 0
    for epoch in range(8):
        order = torch.randperm(len(x), generator=gen)
        for idx in order.split(32):
            loss = nn.functional.mse_loss(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
