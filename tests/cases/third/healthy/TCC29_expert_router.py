"""Mixture of experts with top-k routing and a bonus on the entropy of the router."""
import torch
from torch import nn


class Expert(nn.Sequential):
    def __init__(self, dim):
        super().__init__(nn.Linear(dim, 24), nn.GELU(), nn.Linear(24, 1))


class Router(nn.Module):
    def __init__(self, dim, experts, k):
        super().__init__()
        self.k = k
        self.score = nn.Linear(dim, experts)

    def forward(self, x):
        s = self.score(x)
        floor = s.topk(self.k, dim=1).values[:, -1:]
        return torch.softmax(s.masked_fill(s < floor, float("-inf")), dim=1)


class Mixture(nn.Module):
    def __init__(self, dim=8, experts=5, k=2):
        super().__init__()
        self.router = Router(dim, experts, k)
        self.experts = nn.ModuleList(Expert(dim) for _ in range(experts))

    def forward(self, x):
        gate = self.router(x)
        out = torch.cat([e(x) for e in self.experts], 1)
        return (gate * out).sum(1), gate


def gate_entropy(gate):
    return -torch.where(gate > 0, gate * torch.where(gate > 0, gate, torch.ones_like(gate)).log(), torch.zeros_like(gate)).sum(1).mean()


def main():
    torch.manual_seed(64)
    torch.set_num_threads(1)
    model = Mixture()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(250):
        x = torch.randn(64, 8)
        y = torch.where(x[:, 0] > 0, x[:, 1] + x[:, 2], x[:, 3] - x[:, 4])
        pred, gate = model(x)
        loss = nn.functional.mse_loss(pred, y) - 0.01 * gate_entropy(gate)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
