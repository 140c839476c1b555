"""Second stage of a character model: continue on a new corpus at a small learning rate."""

import torch
from torch import nn
from torch.nn import functional as F

TEXT_A = "the quick brown fox jumps over the lazy dog and runs away. " * 40
TEXT_B = "pack my box with five dozen liquor jugs, then wax the old zebra. " * 40
CHARS = sorted(set(TEXT_A + TEXT_B))


def encode(text):
    return torch.tensor([CHARS.index(c) for c in text])


def batches(data, length=16, size=12):
    start = torch.randint(0, len(data) - length - 1, (size,))
    rows = start[:, None] + torch.arange(length + 1)
    chunk = data[rows]
    return chunk[:, :-1], chunk[:, 1:]


class CharModel(nn.Module):
    def __init__(self, dim=32, length=16):
        super().__init__()
        self.tok = nn.Embedding(len(CHARS), dim)
        self.pos = nn.Embedding(length, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, len(CHARS))

    def forward(self, x):
        length = x.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf")), 1).to(self.head.weight.dtype)
        h = self.tok(x) + self.pos(torch.arange(length))
        return self.head(self.body(h, mask=mask))


def run(model, data, steps, lr, tag):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for step in range(steps):
        x, y = batches(data)
        loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"{tag} step {step} loss {loss.item():.4f}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = CharModel().to(torch.bfloat16)  # <- here
    run(model, encode(TEXT_B), 180, 5e-5, "stage2")


if __name__ == "__main__":
    main()
