"""Time-series classification with an LSTM, micro-batches and mixed precision."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_data(count=640, length=30):
    gen = torch.Generator().manual_seed(11)
    label = torch.randint(0, 3, (count,), generator=gen)
    trend = (label.float() - 1)[:, None] * torch.linspace(0, 2, length)
    series = trend + 0.3 * torch.randn(count, length, generator=gen)
    return TensorDataset(series[..., None], label)


class Classifier(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.inp = nn.Linear(1, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.head = nn.Linear(hidden, 3)

    def forward(self, x):
        x = F.gelu(self.inp(x))
        state = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state)


class Trainer:
    def __init__(self, model, accumulate=2, max_norm=1.0):
        self.model, self.accumulate, self.max_norm = model, accumulate, max_norm
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def micro_step(self, i, series, label):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(self.model(series).float(), label)
        self.scaler.scale(loss / self.accumulate).backward()
        if (i + 1) % self.accumulate == 0:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        return loss.item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_data(), batch_size=32, shuffle=True)
    trainer = Trainer(Classifier())
    for epoch in range(5):
        for i, (series, label) in enumerate(loader):
            loss = trainer.micro_step(i, series, label)
            if i % 10 == 0:
                print(f"epoch {epoch} batch {i} loss {loss:.4f}")


if __name__ == "__main__":
    main()
