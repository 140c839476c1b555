"""Residual convolutional denoiser on small synthetic shape images."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    size: int = 10
    width: int = 8
    batch: int = 16
    steps: int = 120
    lr: float = 0.05
    momentum: float = 0.9
    noise: float = 0.3
    seed: int = 11


class Denoiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.body = nn.Conv2d(width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 1, 3, padding=1)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x):
        h = self.act(self.stem(x))
        h = h + self.act(self.body(h))
        return self.out(h)


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = Denoiser(cfg.width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=cfg.momentum)

    def sample(self):
        c = self.cfg
        axis = torch.arange(c.size).float()
        cy, cx = torch.rand(2, c.batch, 1, 1) * c.size
        r = 2 + 3 * torch.rand(c.batch, 1, 1)
        d = ((axis[None, :, None] - cy) ** 2 + (axis[None, None, :] - cx) ** 2).sqrt()
        clean = torch.sigmoid(2 * (r - d)).unsqueeze(1)
        return clean + c.noise * torch.randn_like(clean), clean

    def fit(self):
        for step in range(self.cfg.steps):
            noisy, clean = self.sample()
            loss = nn.functional.mse_loss(self.model(noisy), clean)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 10 == 0:
                print(f"step {step:4d}  mse {loss.item():.5g}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(Config()).fit()
