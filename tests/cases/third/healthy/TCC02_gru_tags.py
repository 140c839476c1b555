"""GRU classifier for short symbol sequences, epochs over a DataLoader."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_data(n, length, vocab, classes):
    x = torch.randint(0, vocab, (n, length))
    y = torch.where(x[:, 0] > vocab // 2, (x == 1).sum(1).clamp(max=classes - 1), x[:, -1] % classes)
    return TensorDataset(x, y)


class SeqClassifier(nn.Module):
    def __init__(self, vocab, hidden, classes):
        super().__init__()
        self.embed = nn.Embedding(vocab, 24)
        self.gru = nn.GRU(24, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        out, _ = self.gru(self.embed(x))
        return self.head(out[:, -1])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--decay-every", type=int, default=5)
    args = p.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    data = build_data(1400, 9, 12, 4)
    loader = DataLoader(data, batch_size=50, shuffle=True)
    model = SeqClassifier(12, 48, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=args.decay_every, gamma=0.3)
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
