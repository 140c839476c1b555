import random

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)
VOCAB = 90


def corpus(n=900, seed=2):
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        label = rng.randint(0, 1)
        words = [rng.randint(1, VOCAB - 1) for _ in range(rng.randint(4, 14))]
        words += [rng.randint(1, 12) + 12 * label for _ in range(4)]
        rows.append((words, label))
    rows[613] = ([], 0)
    return rows


def pad(rows):
    length = max(len(words) for words, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for r, (words, _) in enumerate(rows):
        ids[r, :len(words)] = torch.tensor(words, dtype=torch.long)
    return ids, torch.tensor([label for _, label in rows])


class BagClassifier(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.table = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, ids):
        keep = (ids > 0).unsqueeze(-1).float()
        pooled = (self.table(ids) * keep).sum(1) / keep.sum(1)
        return self.mlp(pooled)


def main():
    torch.manual_seed(2)
    loader = DataLoader(corpus(), batch_size=30, collate_fn=pad)
    model = BagClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    for epoch in range(5):
        for ids, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(ids), label)
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
