"""Mixed-precision training of a gated MLP with validation and early stopping."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class GatedBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.value, self.gate = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x + self.value(x) * torch.sigmoid(self.gate(x)))


def build_model(features=16, dim=32, classes=3):
    return nn.Sequential(
        nn.Linear(features, dim), GatedBlock(dim), GatedBlock(dim), nn.Linear(dim, classes)
    )


def dataset(count, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 16, generator=gen)
    score = x[:, :3] + 0.5 * x[:, 3:6] * x[:, 6:9]
    return TensorDataset(x, score.argmax(1))


class Stopper:
    def __init__(self, patience):
        self.best, self.left, self.patience = float("inf"), patience, patience

    def done(self, value):
        self.left = self.patience if value < self.best else self.left - 1
        self.best = min(self.best, value)
        return self.left == 0


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, val = DataLoader(dataset(1280, 1), 64, shuffle=True), DataLoader(dataset(400, 2), 200)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    stopper = Stopper(patience=4)
    for epoch in range(8):
        for step, (x, y) in enumerate(train):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            optimizer.step()  # <- here
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        with torch.no_grad():
            val_loss = sum(F.cross_entropy(model(x), y).item() for x, y in val) / len(val)
        print(f"epoch {epoch} val {val_loss:.4f}")
        if stopper.done(val_loss):
            break


if __name__ == "__main__":
    main()
