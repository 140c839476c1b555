"""PointNet on small scans: each scan is moved and scaled to the unit cube."""

import torch
from torch import nn
from torch.nn import functional as F


def scan(kind, points, gen):
    raw = torch.randn(points, 3, generator=gen)
    if kind == 0:
        raw = F.normalize(raw, dim=1)
    elif kind == 1:
        raw = raw.clamp(-1, 1)
        raw[:, 2] = 0.05 * raw[:, 2]
    else:
        raw = raw * torch.tensor([1.5, 0.1, 0.1])
    return raw + 4 * torch.randn(1, 3, generator=gen)


def build(count=600, points=48):
    gen = torch.Generator().manual_seed(9)
    labels = torch.randint(0, 3, (count,), generator=gen)
    clouds = torch.stack([scan(int(k), points, gen) for k in labels])
    clouds[333] = clouds[333, :1]  # sensor returned the same point over and over
    return clouds, labels


class PointNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, cloud):
        low, high = cloud.amin(1, keepdim=True), cloud.amax(1, keepdim=True)
        extent = (high - low).amax(2, keepdim=True)
        unit = (cloud - low) / extent  # <- here
        return self.head(self.local(unit).amax(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clouds, labels = build()
    model = PointNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(5):
        for rows in torch.arange(len(clouds)).split(24):
            loss = F.cross_entropy(model(clouds[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
