"""Training with a large effective batch built from micro batches."""
import torch
from torch import nn

ACCUM = 24
MICRO = 8


def make_model():
    return nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))


def micro_batches(teacher, count):
    for _ in range(count):
        x = torch.randn(MICRO, 12)
        with torch.no_grad():
            y = teacher(x)
        yield x, y


def train(updates=60):
    teacher = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 2))
    for p in teacher.parameters():
        p.data.mul_(2.5)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9)
    optimizer.zero_grad()
    update, running = 0, 0.0
    for i, (x, y) in enumerate(micro_batches(teacher, updates * ACCUM)):
        loss = nn.functional.mse_loss(model(x), y)
        (loss / ACCUM).backward()
        running += loss.item()
        if (i + 1) % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()
            if update % 4 == 0:
                print(f"update {update} loss {running / ACCUM:.5g}")
            update, running = update + 1, 0.0


if __name__ == "__main__":
    torch.manual_seed(17)
    torch.set_num_threads(1)
    train()
