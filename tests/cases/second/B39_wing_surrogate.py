"""Surrogate of a wing simulation, full-batch training in two sittings."""

import io
import torch
from torch import nn
from torch.nn import functional as F


class Surrogate(nn.Module):
    def __init__(self, inputs=5, width=128):
        super().__init__()
        self.stem = nn.Linear(inputs, width)
        self.hidden = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.lift = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.tanh(self.stem(x))
        for layer in self.hidden:
            h = h + torch.tanh(layer(h))
        return self.lift(h).squeeze(1)


def simulations(count=256):
    gen = torch.Generator().manual_seed(41)
    x = 2 * torch.rand(count, 5, generator=gen) - 1
    lift = torch.sin(2 * x[:, 0]) * x[:, 1] + 0.5 * x[:, 2] ** 2 - 0.3 * x[:, 3] * x[:, 4]
    return x, lift


class Session:
    def __init__(self, lr=3e-3):
        self.model = Surrogate()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.step = 0

    def checkpoint(self):
        disk = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "step": self.step}, disk)
        disk.seek(0)
        return disk

    def resume(self, disk):
        saved = torch.load(disk)
        self.model.load_state_dict(saved["model"])  # <- here
        self.step = saved["step"]

    def train(self, x, lift, until):
        while self.step < until:
            loss = F.mse_loss(self.model(x), lift)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.step % 20 == 0 or 218 <= self.step < 226:
                print(f"step {self.step} loss {loss.item():.6f}")
            self.step += 1


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, lift = simulations()
    first = Session()
    first.train(x, lift, 220)
    disk = first.checkpoint()

    second = Session()
    second.resume(disk)
    second.train(x, lift, 320)


if __name__ == "__main__":
    main()
