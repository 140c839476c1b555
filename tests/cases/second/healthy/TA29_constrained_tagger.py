"""Sequence tagger over a restricted tag dictionary, padded batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD, WORDS, TAGS = 0, 50, 6


class Sentences(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.items = []
        for number in range(count):
            length = 10 if number < count // 2 else int(torch.randint(6, 11, (1,), generator=gen))
            words = torch.randint(1, WORDS, (length,), generator=gen)
            self.items.append((words, 1 + (words * 7 + 3) % (TAGS - 1)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(items):
    words = nn.utils.rnn.pad_sequence([w for w, _ in items], batch_first=True, padding_value=PAD)
    tags = nn.utils.rnn.pad_sequence([t for _, t in items], batch_first=True, padding_value=PAD)
    return words, tags


class Tagger(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.reader = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, TAGS)
        allowed = torch.ones(TAGS, dtype=torch.bool)
        allowed[PAD] = False
        self.register_buffer("allowed", allowed)

    def forward(self, words):
        states, _ = self.reader(self.embed(words))
        return self.head(states)


def tagging_loss(logits, tags, allowed):
    logits = logits.masked_fill(~allowed, float("-inf"))
    each = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten(), reduction="none")
    real = (tags.flatten() != PAD).float()
    return (each.masked_fill(real == 0, 0.0)).sum() / real.sum()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Sentences(256, 1), batch_size=16, collate_fn=collate)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(4):
        for step, (words, tags) in enumerate(loader):
            loss = tagging_loss(model(words), tags, model.allowed)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 5.0)
            optimizer.step()
            if step % 4 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
