"""Two-headed regressor with a row-wise sparsity penalty on the input layer of a zero-started branch."""
import torch
from torch import nn


class Branched(nn.Module):
    def __init__(self, features=14, hidden=32):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(features, hidden), nn.SiLU(), nn.Linear(hidden, 1))
        self.direct = nn.Linear(features, 4, bias=False)
        self.mix = nn.Linear(4, 1)
        nn.init.zeros_(self.direct.weight)

    def forward(self, x):
        return (self.main(x) + self.mix(self.direct(x))).squeeze(1)

    def sparsity(self):
        return self.direct.weight.pow(2).sum(0).sqrt().sum()


class Experiment:
    def __init__(self):
        self.model = Branched()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=4e-3)
        self.coef = torch.randn(14) * (torch.arange(14) < 5)

    def data(self, n=64):
        x = torch.randn(n, 14)
        return x, x @ self.coef + 0.5 * torch.sin(2 * x[:, 0])

    def run(self, steps):
        for step in range(steps):
            x, y = self.data()
            fit = nn.functional.smooth_l1_loss(self.model(x), y)
            loss = fit + 1e-3 * self.model.sparsity()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 20 == 0:
                print(f"step {step} fit {fit.item():.4f} total {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(36)
    torch.set_num_threads(1)
    Experiment().run(240)
