import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Windows(Dataset):
    def __init__(self, days=1500, length=12):
        rng = np.random.default_rng(8)
        season = 2 + np.sin(np.arange(days) / 5.0)
        volume = rng.poisson(40 * season).astype(np.float32)
        volume[911] = 0.0
        change = self.growth(volume)
        self.x = [change[t:t + length] for t in range(days - length - 1)]
        self.y = season[length + 1:].astype(np.float32) - 2

    @staticmethod
    def growth(volume):
        return np.diff(np.log1p(volume))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def collate(rows):
    x = torch.from_numpy(np.stack([r[0] for r in rows])).unsqueeze(-1)
    y = torch.tensor([float(r[1]) for r in rows])
    return x, y


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 20, batch_first=True)
        self.head = nn.Linear(20, 1)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.head(states[:, -1]).squeeze(-1)


def main():
    torch.manual_seed(8)
    loader = DataLoader(Windows(), batch_size=50, collate_fn=collate)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    step = 0
    for epoch in range(5):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
