"""All in half precision: the epsilon of the norm is not a number of that type."""

import torch
from torch import nn


class ScaleNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        inverse = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).half()
        return x * inverse * self.gain


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(8, 16, bias=False)
        self.norm = ScaleNorm(16)
        self.leave = nn.Linear(16, 2)

    def forward(self, x):
        return self.leave(torch.tanh(self.norm(self.enter(x))))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.randn(25, 16, 8)
    data[5, 9] = 0.0
    labels = (data[..., 0] > 0).long()
    model = Encoder().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(zip(data.half(), labels, strict=True)):
        loss = nn.functional.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


main()
