"""Sensor model with its own feature normalisation and several optimizers."""
import torch
from torch import nn


class FeatureNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        mean = x.mean(0)
        var = (x * x).mean(0) - mean * mean
        return (x - mean) / (torch.sqrt(var) + 1e-5) * self.weight + self.bias


class SensorModel(nn.Module):
    def __init__(self, channels=6):
        super().__init__()
        self.norm = FeatureNorm(channels)
        self.trunk = nn.Sequential(nn.Linear(channels, 32), nn.ReLU())
        self.value = nn.Linear(32, 1)
        self.state = nn.Linear(32, 3)

    def forward(self, x):
        h = self.trunk(self.norm(x))
        return self.value(h).squeeze(1), self.state(h)


def readings(n, step):
    x = torch.randn(n, 6)
    state = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    value = x[:, 2] - 0.5 * x[:, 3]
    x = x * torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 2e-3]) + torch.tensor([0.0, 5.0, -1.0, 2.0, 0.0, 21.7])
    return x, value, state


def main():
    torch.manual_seed(71)
    torch.set_num_threads(1)
    model = SensorModel()
    body = torch.optim.SGD([*model.norm.parameters(), *model.trunk.parameters()], lr=0.05, momentum=0.9)
    heads = torch.optim.Adam([*model.value.parameters(), *model.state.parameters()], lr=3e-3)
    for step in range(160):
        x, value, state = readings(48, step)
        pred, logits = model(x)
        loss = nn.functional.mse_loss(pred, value) + nn.functional.cross_entropy(logits, state)
        for o in (body, heads):
            o.zero_grad()
        loss.backward()
        for o in (body, heads):
            o.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
