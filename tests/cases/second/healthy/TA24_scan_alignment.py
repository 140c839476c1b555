"""Point cloud alignment: predict a rotation vector that turns one scan onto the next."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def cross_matrix(v):
    x, y, z = v.unbind(1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).view(-1, 3, 3)


def rotate(vector, points):
    square = vector.pow(2).sum(1)
    angle = torch.linalg.vector_norm(vector, dim=1)
    tiny = angle < 1e-4
    first = torch.where(tiny, 1 - square / 6, torch.sin(angle) / angle.masked_fill(tiny, 1.0))
    second = torch.where(tiny, 0.5 - square / 24, (1 - torch.cos(angle)) / square.clamp(min=1e-8))
    k = cross_matrix(vector)
    turn = torch.eye(3) + first.view(-1, 1, 1) * k + second.view(-1, 1, 1) * (k @ k)
    return points @ turn.transpose(1, 2)


class Aligner(nn.Module):
    def __init__(self, points, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3 * points, width, bias=False), nn.Tanh(), nn.Linear(width, 3, bias=False)
        )

    def forward(self, before, after):
        return self.net((after - before).flatten(1))


def make_scans(count, points=6, seed=4):
    gen = torch.Generator().manual_seed(seed)
    shape = torch.randn(points, 3, generator=gen)
    before = shape + 0.05 * torch.randn(count, points, 3, generator=gen)
    vector = 0.6 * torch.randn(count, 3, generator=gen)
    after = rotate(vector, before)
    after[300:303] = before[300:303]
    return TensorDataset(before, after)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_scans(512), batch_size=16)
    model = Aligner(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(3):
        for step, (before, after) in enumerate(loader):
            moved = rotate(model(before, after), before)
            loss = nn.functional.mse_loss(moved, after)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 8 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
