"""Token classifier with RMS normalisation, mixed precision and a loss scaler."""
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        ms = (h * h).mean(-1, keepdim=True)
        return (h * torch.rsqrt(ms + self.eps) * self.gain).type_as(x)


class Tagger(nn.Module):
    def __init__(self, vocab=60, dim=32, tags=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.inp = nn.Linear(dim, dim, bias=False)
        self.norm = RMSNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, tags))

    def forward(self, ids):
        return self.ff(self.norm(self.inp(self.embed(ids))))


def corpus(n, table):
    ids = torch.randint(1, 60, (n, 12))
    return ids, table[ids]


def main():
    torch.manual_seed(44)
    torch.set_num_threads(1)
    table = torch.randint(0, 5, (60,))
    table[0] = -100
    ids, tags = corpus(3200, table)
    for row in (805, 1390, 1391, 2210, 2750):
        ids[row, 7:] = 0
    tags = table[ids]
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(200):
        sl = slice(16 * step, 16 * step + 16)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(ids[sl])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tags[sl].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
