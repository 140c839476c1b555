"""Shell command completion: causal self-attention over padded command lines."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD, VOCAB = 0, 24


class Commands(Dataset):
    def __init__(self, count, seed=1):
        gen = torch.Generator().manual_seed(seed)
        self.lines = []
        for number in range(count):
            length = 8 if number < 160 else int(torch.randint(4, 9, (1,), generator=gen))
            line = [int(torch.randint(1, VOCAB, (1,), generator=gen))]
            while len(line) < length + 1:
                line.append(1 + (line[-1] * 5 + 2) % (VOCAB - 1))
            self.lines.append(torch.tensor(line))

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return self.lines[index]


def collate(lines):
    longest = max(map(len, lines))
    rows = [torch.cat([line, torch.full((longest - len(line),), PAD)]) for line in lines]
    rows = torch.stack(rows)
    return rows[:, :-1], rows[:, 1:]


class Completer(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.attend = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, VOCAB))

    def forward(self, tokens):
        h = self.embed(tokens)
        future = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        mixed, _ = self.attend(h, h, h, attn_mask=future, key_padding_mask=tokens == PAD)
        return self.head(self.norm(h + mixed))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Commands(480), batch_size=16, collate_fn=collate)
    model = Completer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(3):
        for step, (tokens, following) in enumerate(loader):
            logits = model(tokens).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, following.flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
