"""Weather sensors: classify pressure windows after standardising each one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class WindowStandardise(nn.Module):
    def forward(self, x):
        mean = x.mean(dim=1, keepdim=True)
        spread = (x - mean).pow(2).mean(dim=1, keepdim=True).sqrt()
        return (x - mean) / (spread + 0.01)


class FrontDetector(nn.Module):
    def __init__(self, length, width=32):
        super().__init__()
        self.standardise = WindowStandardise()
        self.net = nn.Sequential(nn.Linear(length, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, x):
        return self.net(self.standardise(x))


def make_windows(count, length=24, seed=0):
    gen = torch.Generator().manual_seed(seed)
    front = torch.randint(0, 2, (count,), generator=gen)
    time = torch.linspace(-1, 1, length)
    shape = torch.where(front[:, None] == 1, torch.tanh(5 * time), torch.sin(6 * time)[None])
    strength = 2.0 + 2.0 * torch.rand(count, 1, generator=gen)
    strength[torch.rand(count, 1, generator=gen) < 0.004] *= 0.02
    noise = 0.5 * torch.randn(count, length, generator=gen)
    return TensorDataset(1008.0 + strength * (shape + noise), front)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_windows(768), batch_size=32)
    model = FrontDetector(24)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    for epoch in range(4):
        total = 0.0
        for window, front in loader:
            loss = nn.functional.cross_entropy(model(window), front)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
