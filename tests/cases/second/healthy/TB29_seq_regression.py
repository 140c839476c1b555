"""Remaining useful life of a pump from its vibration history, 1-D conv net."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def pump_records(count=960, length=40):
    gen = torch.Generator().manual_seed(21)
    wear = torch.rand(count, generator=gen)
    t = torch.linspace(0, 1, length)
    signal = wear[:, None] * torch.sin(12 * t) + 0.2 * torch.randn(count, length, generator=gen)
    return TensorDataset(signal[:, None], 1 - wear)


class LifeNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv1d(1, width, 5, padding=2)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.out(x.amax(-1)).squeeze(1)


def train_epoch(model, loader, optimizer, epoch):
    for step, (signal, life) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.mse_loss(model(signal), life)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.5f}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(pump_records(), batch_size=32, shuffle=True)
    model = LifeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(8):
        train_epoch(model, loader, optimizer, epoch)


if __name__ == "__main__":
    main()
