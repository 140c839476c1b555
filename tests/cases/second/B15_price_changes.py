"""Next-day direction of traded volume from its relative daily changes, GRU."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

np.seterr(all="ignore")


def load_volume(days=1600):
    rng = np.random.default_rng(4)
    level = np.zeros(days)
    for t in range(1, days):
        level[t] = 0.3 * level[t - 1] + rng.normal(0, 0.3)
    volume = np.round(200 * np.exp(level))
    volume[901] = 0.0  # trading halt
    return volume


class Windows(Dataset):
    def __init__(self, series, length=16):
        change = (series[1:] - series[:-1]) / series[:-1]
        self.change = change.astype("float32")
        self.length = length

    def __len__(self):
        return len(self.change) - self.length

    def __getitem__(self, i):
        window = self.change[i : i + self.length]
        target = np.float32(self.change[i + self.length] > 0)
        return torch.from_numpy(window)[:, None], torch.tensor(target)


class Direction(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.head(out[:, -1]).squeeze(-1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Windows(load_volume()), batch_size=32, shuffle=False)
    model = Direction()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(5):
        for i, (window, target) in enumerate(loader):
            loss = F.binary_cross_entropy_with_logits(model(window), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if i % 7 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
