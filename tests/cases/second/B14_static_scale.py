"""Half-precision recurrent regressor with a fixed loss scale kept by hand."""

import torch
from torch import nn
from torch.nn import functional as F

SCALE = 2.0**15


class LoadForecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.cell_in = nn.Linear(2, hidden)
        self.cell_rec = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.cell_rec.in_features)
        for t in range(x.shape[1]):
            h = torch.tanh(self.cell_in(x[:, t]) + self.cell_rec(h))
        return self.out(h).squeeze(1)


def windows(gen, step, size=32, length=8):
    start = 24 * torch.rand(size, 1, generator=gen)
    t = start + torch.arange(length + 1)
    load = torch.sin(t * 6.2832 / 24) + 0.4 * torch.sin(t * 6.2832 / 12)
    load = load + 0.05 * torch.randn(load.shape, generator=gen)
    x = torch.stack([load[:, :-1], torch.cos(t[:, :-1] * 6.2832 / 24)], -1)
    target = load[:, -1].clone()
    if step == 90:
        target[7] = 36.0  # meter rollover
    return x, target


class HalfTrainer:
    def __init__(self, model, lr=3e-3, max_norm=1.0):
        self.model, self.max_norm = model, max_norm
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def step(self, x, target):
        with torch.autocast("cpu", dtype=torch.float16):
            pred = self.model(x)
        loss = F.mse_loss(pred.float(), target)
        self.optimizer.zero_grad()
        (loss * SCALE).backward()
        for p in self.model.parameters():
            p.grad.div_(SCALE)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)  # <- here
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(25)
    trainer = HalfTrainer(LoadForecaster())
    for step in range(130):
        loss = trainer.step(*windows(gen, step))
        if step % 10 == 0:
            print(f"step {step} loss {loss:.4f}")


if __name__ == "__main__":
    main()
