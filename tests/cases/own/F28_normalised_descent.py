"""An optimizer of one's own divides by the length of a gradient; a closed gate makes it zero."""

import torch
from torch import nn


class NormalisedDescent(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    direction = p.grad / p.grad.norm()  # <- here
                    p.add_(direction, alpha=-group["lr"])


class Gated(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.gate * torch.relu(self.inner(x))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(5, 12), Gated(12), nn.Linear(12, 1))
    optimizer = NormalisedDescent(model.parameters(), lr=0.02)
    for step in range(20):
        x = torch.randn(32, 5)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", loss.item())


main()
