"""Small patch transformer with warm-up and cosine decay."""
import math
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Schedule:
    peak: float = 1e-3
    warmup: int = 20
    total: int = 240

    def __call__(self, step):
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        t = (step - self.warmup) / (self.total - self.warmup)
        return self.peak * 0.5 * (1 + math.cos(math.pi * min(t, 1.0)))


@dataclass
class Config:
    schedule: Schedule = field(default_factory=Schedule)
    dim: int = 32
    classes: int = 4
    batch: int = 24


class PatchTransformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.patch = nn.Conv2d(1, cfg.dim, 4, stride=4)
        self.position = nn.Parameter(0.02 * torch.randn(1, 9, cfg.dim))
        layer = nn.TransformerEncoderLayer(cfg.dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(cfg.dim, cfg.classes)

    def forward(self, img):
        tokens = self.patch(img).flatten(2).transpose(1, 2) + self.position
        return self.head(self.encoder(tokens).mean(1))


def images(n):
    y = torch.randint(0, 4, (n,))
    img = 0.5 * torch.randn(n, 1, 12, 12)
    for i, c in enumerate(y.tolist()):
        img[i, 0, 6 * (c // 2):6 * (c // 2) + 6, 6 * (c % 2):6 * (c % 2) + 6] += 0.7
    return img, y


def main():
    torch.manual_seed(77)
    torch.set_num_threads(1)
    cfg = Config()
    model = PatchTransformer(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cfg.schedule)
    for step in range(cfg.schedule.total):
        img, y = images(cfg.batch)
        loss = nn.functional.cross_entropy(model(img), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
