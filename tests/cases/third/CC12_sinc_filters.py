"""Learn band-pass filters (parametrised windowed sinc) that recover the pitch class of a short signal."""
import math

import torch
from torch import nn


class SincFilterBank(nn.Module):
    def __init__(self, filters=8, taps=32):
        super().__init__()
        self.cutoff = nn.Parameter(torch.linspace(0.05, 0.4, filters))
        self.width = nn.Parameter(torch.full((filters,), 0.05))
        self.register_buffer("time", torch.arange(taps).float() - taps // 2)
        self.register_buffer("window", torch.hann_window(taps, periodic=False))

    def lowpass(self, f):
        arg = 2 * math.pi * f[:, None] * self.time
        sinc = torch.where(arg == 0, torch.ones_like(arg), torch.sin(arg) / arg)
        return 2 * f[:, None] * sinc

    def forward(self, wave):
        kernel = (self.lowpass(self.cutoff + self.width) - self.lowpass(self.cutoff)) * self.window
        return nn.functional.conv1d(wave.unsqueeze(1), kernel.unsqueeze(1))


class PitchNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.bank = SincFilterBank()
        self.head = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, wave):
        energy = self.bank(wave).square().mean(-1)
        return self.head(torch.log(energy + 1e-3))


def waves(n, classes):
    y = torch.randint(0, classes, (n,))
    f = 0.06 + 0.34 * (y + 0.2 * torch.randn(n)) / classes
    t = torch.arange(96)
    return torch.sin(2 * math.pi * (f[:, None] * t + torch.rand(n, 1))) + 0.2 * torch.randn(n, 96), y


if __name__ == "__main__":
    torch.manual_seed(6)
    torch.set_num_threads(1)
    net = PitchNet(6)
    optimizer = torch.optim.Adam([
        {"params": net.bank.parameters(), "lr": 1e-3},
        {"params": net.head.parameters(), "lr": 5e-3},
    ])
    for step in range(200):
        wave, y = waves(32, 6)
        loss = nn.functional.cross_entropy(net(wave), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
