"""Sequence copy task with a fixed sinusoidal table for the positions, growing lengths."""

import math
import torch
from torch import nn
from torch.nn import functional as F


class Positions(nn.Module):
    def __init__(self, max_len, dim, train_len=32):
        super().__init__()
        table = torch.empty(max_len, dim)
        t = torch.arange(train_len).float()[:, None]
        freq = torch.exp(torch.arange(0, dim, 2) * (-math.log(1e4) / dim))
        table[:train_len, 0::2] = torch.sin(t * freq)
        table[:train_len, 1::2] = torch.cos(t * freq)
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.shape[1]]


class ShiftModel(nn.Module):
    def __init__(self, vocab=20, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.positions = Positions(64, dim, train_len=64)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        h = self.positions(self.emb(tokens))
        mixed, _ = self.attn(h, h, h, need_weights=False)
        return self.head(self.norm(h + mixed))


def main():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ShiftModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = [12] * 60 + [24] * 60 + [40] * 60
    for step, length in enumerate(schedule):
        tokens = torch.randint(0, 20, (24, length))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), (19 - tokens).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step} length {length} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
