"""Sparse mixture of experts on tabular data; a spread bonus keeps the router busy once it has settled."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Router(nn.Module):
    def __init__(self, inside, experts, keep):
        super().__init__()
        self.score, self.keep = nn.Linear(inside, experts), keep

    def forward(self, x):
        score = self.score(x)
        value, index = score.topk(self.keep, dim=1)
        return torch.zeros_like(score).scatter(1, index, value.softmax(1))


class Mixture(nn.Module):
    def __init__(self, inside, experts=6, keep=2, width=16):
        super().__init__()
        self.router = Router(inside, experts, keep)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(inside, width), nn.GELU(), nn.Linear(width, 1)) for _ in range(experts)
        )

    def forward(self, x):
        gate = self.router(x)
        answers = torch.cat([expert(x) for expert in self.experts], dim=1)
        return (gate * answers).sum(1), gate


def spread(gate):
    return -(gate * gate.clamp(min=1e-9).log()).sum(1).mean()


def make_table(count=640, seed=2):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=gen)
    y = torch.where(x[:, 0] > 0, x[:, 1] + x[:, 2], x[:, 3] - x[:, 4])
    return TensorDataset(x, y + 0.05 * torch.randn(count, generator=gen))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_table(), batch_size=32, shuffle=True)
    model = Mixture(6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    step = 0
    for epoch in range(6):
        for x, y in loader:
            answer, gate = model(x)
            loss = nn.functional.mse_loss(answer, y)
            if step >= 30:
                loss = loss - 0.01 * spread(gate)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
