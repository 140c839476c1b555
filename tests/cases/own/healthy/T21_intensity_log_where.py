"""Log intensity of a point process, chosen by where; the other branch is the logarithm of zero."""

import torch
from torch import nn


def log_likelihood(rate, counts):
    safe = torch.where(rate > 0, torch.log(rate.clamp(min=1e-6)), torch.zeros_like(rate))
    return (counts * safe - rate).mean()


class Intensity(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 32), nn.Linear(32, 4)

    def forward(self, x):
        return nn.functional.softplus(self.second(self.first(x).sin()))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Intensity()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(20):
        x = torch.randn(40, 3)
        exposure = torch.ones(40, 1)
        if step == 7:
            exposure[3:6] = 0
        counts = torch.poisson(x[:, :1].exp().clamp(max=5).expand(-1, 4) * exposure)
        loss = -log_likelihood(model(x) * exposure, counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", loss.item())


main()
