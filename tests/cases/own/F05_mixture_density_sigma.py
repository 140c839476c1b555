"""Mixture density network; the width of a component is an exponential."""

import math

import torch
from torch import nn


class MixtureHead(nn.Module):
    def __init__(self, width, parts):
        super().__init__()
        self.weight, self.mean = nn.Linear(width, parts), nn.Linear(width, parts)
        self.spread = nn.Linear(width, parts)

    def forward(self, h):
        sigma = torch.exp(self.spread(h))  # <- here
        return self.weight(h).log_softmax(-1), self.mean(h), sigma


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU())
        self.head = MixtureHead(32, 3)

    def forward(self, x):
        return self.head(self.body(x))


def negative_log_likelihood(parts, y):
    weight, mean, sigma = parts
    density = -0.5 * ((y - mean) / sigma) ** 2 - sigma.log() - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(weight + density, dim=1).mean()


torch.manual_seed(2)
torch.set_num_threads(1)
x = torch.randn(960, 2)
y = x[:, :1].sin() + 0.1 * torch.randn(960, 1)
x[11 * 32 + 20] = torch.tensor([900.0, -900.0])
model = Model()
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
for step in range(30):
    part = slice(step * 32, step * 32 + 32)
    loss = negative_log_likelihood(model(x[part]), y[part])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, "nll", loss.item())
