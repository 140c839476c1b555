"""Metric learning with batch-hard triplets."""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 12))

    def forward(self, x):
        return self.layers(x)


def distances(e):
    delta = e.unsqueeze(0) - e.unsqueeze(1)
    return torch.sqrt((delta * delta).sum(-1))


def batch_hard(e, y, margin=0.5):
    d = distances(e)
    same = y[:, None] == y[None, :]
    hardest_pos = (d * same).max(1).values
    hardest_neg = d.masked_fill(same, 1e6).min(1).values
    return nn.functional.relu(hardest_pos - hardest_neg + margin).mean()


def batches(n_batches, centers):
    for _ in range(n_batches):
        y = torch.randint(0, len(centers), (40,))
        yield centers[y] + 0.8 * torch.randn(40, centers.shape[1]), y


if __name__ == "__main__":
    torch.manual_seed(31)
    torch.set_num_threads(1)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (x, y) in enumerate(batches(160, 1.5 * torch.randn(8, 20))):
        loss = batch_hard(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} triplet {loss.item():.4f}")
