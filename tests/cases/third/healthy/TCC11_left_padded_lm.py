"""Decoder block written by hand; prompts of different length are padded on the left."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader

PAD, VOCAB = 0, 30


class CausalAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, keep):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        allowed = causal & keep[:, None, None, :] | torch.eye(t, dtype=torch.bool)
        scores = scores.masked_fill(~allowed, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = CausalAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, keep):
        x = x + self.attn(self.norm1(x), keep)
        return x + self.ff(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, dim=32, heads=2, layers=2, length=16):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        keep = ids != PAD
        for block in self.blocks:
            x = block(x, keep)
        return self.lm_head(self.norm(x))


def make_sequence(length):
    start, stride = torch.randint(0, VOCAB - 1, ()).item(), torch.randint(1, 4, ()).item()
    return torch.tensor([1 + (start + stride * i) % (VOCAB - 1) for i in range(length)])


def collate(batch):
    width = max(len(s) for s in batch)
    return torch.stack([nn.functional.pad(s, (width - len(s), 0), value=PAD) for s in batch])


def main():
    torch.manual_seed(12)
    torch.set_num_threads(1)
    lengths = [16] * 384 + torch.randint(9, 17, (1920,)).tolist()
    loader = DataLoader([make_sequence(n) for n in lengths], batch_size=16, collate_fn=collate)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, ids in enumerate(loader):
        labels = ids[:, 1:].masked_fill(ids[:, :-1] == PAD, -100)
        logits = model(ids)[:, :-1]
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 12 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
