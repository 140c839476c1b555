"""Rain in the next hour from pressure, humidity, wind and temperature: LSTM classifier."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def stations(count=1280, hours=10):
    gen = torch.Generator().manual_seed(27)
    trend = torch.randn(count, generator=gen)
    t = torch.linspace(0, 1, hours)
    pressure = 101325 + 900 * trend[:, None] * t + 300 * torch.randn(count, 1, generator=gen)
    humidity = 60 - 15 * trend[:, None] * t + 4 * torch.randn(count, hours, generator=gen)
    wind = 5 + 2 * torch.randn(count, hours, generator=gen)
    temperature = 285 + 6 * torch.randn(count, 1, generator=gen) + torch.randn(count, hours, generator=gen)
    x = torch.stack([pressure, humidity, wind, temperature], -1)
    rain = (trend + 0.2 * torch.randn(count, generator=gen) < 0).float()
    return x, rain


class RainModel(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.lstm = nn.LSTM(4, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.head(out[:, -1]).squeeze(1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, rain = stations()
    x = (x - x.mean((0, 1))) / x.std((0, 1))
    loader = DataLoader(TensorDataset(x, rain), batch_size=64, shuffle=True)
    model = RainModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(7):
        hits = total = 0.0
        for series, label in loader:
            logit = model(series)
            loss = F.binary_cross_entropy_with_logits(logit, label)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item() * len(label)
            hits += ((logit > 0) == (label > 0.5)).sum().item()
        print(f"epoch {epoch} loss {total / len(x):.4f} accuracy {hits / len(x):.3f}")


if __name__ == "__main__":
    main()
