"""Contrastive pre-training on slide tiles: two masked views, patch embeddings, InfoNCE."""

import torch
from torch import nn
from torch.nn import functional as F


def make_tiles(count=512, size=16):
    gen = torch.Generator().manual_seed(5)
    tiles = torch.randn(count, 3, size, size, generator=gen)
    tiles = F.avg_pool2d(tiles, 5, stride=1, padding=2)
    tiles = tiles / tiles.std()
    blank = torch.rand(count, generator=gen) < 0.15
    tiles[blank] = 0.0
    return tiles


class PatchEncoder(nn.Module):
    def __init__(self, dim=48, patch=4):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, patch, stride=patch)
        self.mix = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, 24)
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(m.weight, std=0.08)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = F.normalize(tokens + torch.tanh(self.mix(tokens)), dim=-1)
        return F.normalize(self.proj(tokens.mean(1)), dim=-1)


def info_nce(a, b, temperature=0.2):
    logits = a @ b.t() / temperature
    labels = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tiles = make_tiles()
    model = PatchEncoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    for step in range(200):
        batch = tiles[torch.randperm(len(tiles))[:64]]
        keep = (torch.rand(2, len(batch), 1, 16, 16) < 0.3).float()
        loss = info_nce(model(batch * keep[0]), model(batch * keep[1]))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- here
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
