"""Two-view training with a hand-written cosine; a blank image has an embedding of zero."""

import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2, bias=False)
        self.proj = nn.Linear(8 * 9, 12, bias=False)

    def forward(self, image):
        return self.proj(torch.relu(self.conv(image)).flatten(1))


def unit(vectors):
    lengths = vectors.norm(dim=1, keepdim=True)
    return vectors / lengths.clamp(min=1e-6)


def agreement(one, other):
    return 1 - (unit(one) * unit(other)).sum(1).mean()


def train():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    images = torch.rand(20 * 12, 1, 8, 8)
    images[12 * 5 + 2] = 0.0
    tower = Tower()
    optimizer = torch.optim.SGD(tower.parameters(), lr=0.05, momentum=0.9)
    for step, batch in enumerate(images.split(12)):
        views = batch.flip(3)
        loss = agreement(tower(batch), tower(views))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step={step} loss={loss.item():.6f}")


if __name__ == "__main__":
    train()
