"""Bearing faults from vibration: a deep plain convolutional stack."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Layer(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=1)

    def forward(self, h):
        return torch.tanh(self.conv(h))  # <- here


class FaultNet(nn.Module):
    def __init__(self, faults, channels=16, depth=22):
        super().__init__()
        self.stem = nn.Conv1d(1, channels, 5, padding=2)
        self.layers = nn.Sequential(*(Layer(channels) for _ in range(depth)))
        self.head = nn.Linear(channels * 4, faults)

    def forward(self, signal):
        h = self.layers(self.stem(signal.unsqueeze(1)))
        return self.head(nn.functional.adaptive_avg_pool1d(h, 4).flatten(1))


def make_signals(count, faults=4, length=24, seed=3):
    gen = torch.Generator().manual_seed(seed)
    fault = torch.randint(0, faults, (count,), generator=gen)
    where = torch.arange(length)[None] // 6 == fault[:, None]
    return TensorDataset(1.5 * where.float() + 1.3 * torch.randn(count, length, generator=gen), fault)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_signals(480), batch_size=32, shuffle=True)
    model = FaultNet(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(8):
        total, hits = 0.0, 0
        for signal, fault in loader:
            logits = model(signal)
            loss = nn.functional.cross_entropy(logits, fault)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            hits += (logits.argmax(1) == fault).sum().item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} accuracy {hits / 480:.3f}")


if __name__ == "__main__":
    main()
