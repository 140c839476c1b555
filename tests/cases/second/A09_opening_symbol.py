"""Sequence memory: which of six symbols opened a long noisy sequence?"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class OpeningSymbol(Dataset):
    def __init__(self, count, length, symbols, seed):
        gen = torch.Generator().manual_seed(seed)
        self.target = torch.randint(0, symbols, (count,), generator=gen)
        self.signal = 0.3 * torch.randn(count, length, symbols, generator=gen)
        self.signal[torch.arange(count), 0, self.target] += 2.0

    def __len__(self):
        return len(self.target)

    def __getitem__(self, index):
        return self.signal[index], self.target[index]


class Reader(nn.Module):
    def __init__(self, symbols, width=48):
        super().__init__()
        self.encoder = nn.RNN(symbols, width, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, signal):
        states, _ = self.encoder(signal)
        return self.head(states[:, -1])  # <- here


def run_epoch(model, loader, optimizer):
    total, hits = 0.0, 0
    for signal, target in loader:
        logits = model(signal)
        loss = nn.functional.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
        hits += (logits.argmax(1) == target).sum().item()
    return total / len(loader), hits / len(loader.dataset)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Reader(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(12):
        loader = DataLoader(OpeningSymbol(512, 60, 6, epoch), batch_size=64, shuffle=True)
        loss, accuracy = run_epoch(model, loader, optimizer)
        print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
