"""Masked-token model on short titles."""
import random

import torch
from torch import nn

MASK, VOCAB = 1, 26


class TitleModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.place = nn.Parameter(0.1 * torch.randn(12, dim))
        self.mix = nn.LSTM(dim, dim // 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        h = self.embed(ids) + self.place[:ids.shape[1]]
        return self.out(self.mix(h)[0])


def title_batch(rng, n):
    length = rng.choice([2, 3, 4, 6, 8, 10])
    rows = []
    for _ in range(n):
        a = rng.randrange(24)
        rows.append([2 + (a + 3 * i) % 24 for i in range(length)])
    return torch.tensor(rows)


def mask_tokens(ids, rate):
    chosen = torch.rand(ids.shape) < rate
    return ids.masked_fill(chosen, MASK), chosen


def main():
    rng = random.Random(2)
    torch.manual_seed(2)
    torch.set_num_threads(1)
    model = TitleModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(300):
        ids = title_batch(rng, 8)
        corrupted, chosen = mask_tokens(ids, 0.15)
        logits = model(corrupted)
        loss = nn.functional.cross_entropy(logits[chosen], ids[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
