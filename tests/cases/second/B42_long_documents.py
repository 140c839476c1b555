"""Document classifier with plain self-attention; documents come in very different lengths."""

import torch
from torch import nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # <- here
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class DocClassifier(nn.Module):
    def __init__(self, vocab=200, dim=32, classes=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.attn = SelfAttention(dim, 4)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens):
        h = self.emb(tokens)
        h = self.norm(h + self.attn(h))
        return self.head(h.mean(1))


def document_batch(gen, length, size=8):
    topic = torch.randint(0, 4, (size,), generator=gen)
    words = torch.randint(0, 200, (size, length), generator=gen)
    topical = torch.rand(size, length, generator=gen) < 0.3
    words = torch.where(topical, words // 4 * 4 + topic[:, None], words)
    return words, topic


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(15)
    lengths = [64, 96, 128, 80, 112, 64, 144, 96] * 15
    lengths[37] = 150_000  # the annual report
    model = DocClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, length in enumerate(lengths):
        words, topic = document_batch(gen, length)
        loss = F.cross_entropy(model(words), topic)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 0:
            print(f"step {step} length {length} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
