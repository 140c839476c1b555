"""Contrastive learning of two views with a cosine similarity and a temperature."""
import torch
from torch import nn
import torch.nn.functional as F


class Projector(nn.Module):
    def __init__(self, dim=24, out=16):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.project = nn.Linear(64, out)

    def forward(self, x):
        return F.normalize(self.project(self.backbone(x)), dim=1)


class InfoNCE(nn.Module):
    def __init__(self, temperature=0.01):
        super().__init__()
        self.temperature = temperature

    def forward(self, a, b):
        sim = a @ b.T / self.temperature
        return F.cross_entropy(sim, torch.arange(len(a)))


def main():
    torch.manual_seed(19)
    torch.set_num_threads(1)
    model, criterion = Projector(), InfoNCE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    mix = torch.randn(8, 24)
    for step in range(250):
        latent = torch.randn(48, 8)
        first = latent @ mix + 2.0 * torch.randn(48, 24)
        second = latent @ mix + 2.0 * torch.randn(48, 24)
        loss = criterion(model(first), model(second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
