"""Point-set classifier under half-precision autocast; the pooled energy of a set is the input of the head."""
import torch
from torch import nn


class SetNet(nn.Module):
    def __init__(self, classes, width=32):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.pool_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, points):
        h = self.point(points)
        energy = (h * h).sum(1)
        return self.head(self.pool_norm(torch.log1p(energy)))


def clouds(n, points, spread):
    y = torch.randint(0, 3, (n,))
    stretch = torch.tensor([[3.0, 1.0, 1.0], [1.0, 3.0, 1.0], [1.0, 1.0, 3.0]])[y]
    return spread * torch.randn(n, points, 3) * stretch[:, None], y


def main():
    torch.manual_seed(58)
    torch.set_num_threads(1)
    model = SetNet(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        large = step % 10 == 4
        points, y = clouds(16, 128 if large else 64, spread=30.0 if large else 1.0)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(points)
        loss = nn.functional.cross_entropy(logits.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
