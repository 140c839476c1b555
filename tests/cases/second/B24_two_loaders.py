"""Sentence classification; texts and categories are stored and loaded separately."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def corpus(count=1024, length=10, vocab=60):
    gen = torch.Generator().manual_seed(32)
    category = torch.randint(0, 6, (count,), generator=gen)
    tokens = torch.randint(0, vocab, (count, length), generator=gen)
    topical = torch.rand(count, length, generator=gen) < 0.5
    return torch.where(topical, tokens // 6 * 6 + category[:, None], tokens), category


class Encoder(nn.Module):
    def __init__(self, vocab=60, dim=32, classes=6):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 10, dim))
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens):
        h = self.tok(tokens) + self.pos
        n = self.norm1(h)
        h = h + self.attn(n, n, n, need_weights=False)[0]
        h = h + self.ffn(self.norm2(h))
        return self.head(h.mean(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokens, category = corpus()
    text_loader = DataLoader(tokens, batch_size=32, shuffle=True)
    label_loader = DataLoader(category, batch_size=32, shuffle=True)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for epoch in range(7):
        total = hits = 0.0
        for text, label in zip(text_loader, label_loader):
            logits = model(text)
            loss = F.cross_entropy(logits, label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(label)
            hits += (logits.argmax(1) == label).sum().item()
        print(f"epoch {epoch} loss {total / len(tokens):.4f} accuracy {hits / len(tokens):.3f}")


if __name__ == "__main__":
    main()
