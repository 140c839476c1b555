"""Document classifier on averaged word vectors; documents are lists of known words."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    def __init__(self, n, known):
        self.rows = []
        for _ in range(n):
            label = int(torch.randint(0, 3, ()))
            length = int(torch.randint(2, 14, ()))
            words = torch.where(torch.rand(length) < 0.6, torch.randint(0, 20, (length,)) + 20 * label, torch.randint(60, 120, (length,)))
            self.rows.append((words[words < known], label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(len(w) for w, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width)
    for i, (w, _) in enumerate(rows):
        ids[i, :len(w)] = w
        mask[i, :len(w)] = 1
    return ids, mask, torch.tensor([y for _, y in rows])


class AverageModel(nn.Module):
    def __init__(self, words, dim=24):
        super().__init__()
        self.vectors = nn.Embedding(words, dim)
        self.classify = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, ids, mask):
        mask = mask.unsqueeze(-1)
        mean = (self.vectors(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.classify(mean)


def main():
    torch.manual_seed(18)
    torch.set_num_threads(1)
    loader = DataLoader(Documents(1600, known=105), batch_size=20, shuffle=True, collate_fn=collate)
    model = AverageModel(105)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    step = 0
    for epoch in range(3):
        for ids, mask, y in loader:
            loss = nn.functional.cross_entropy(model(ids, mask), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
