"""Twelve plain convolutions for plankton images, custom weight init."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class DeepConv(nn.Module):
    def __init__(self, width=16, depth=12, classes=4):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
        for i in range(depth - 1):
            layers += [nn.Conv2d(width, width, 3, padding=1, stride=2 if i % 4 == 3 else 1), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)
        self.reset()

    def reset(self):
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.normal_(m.weight)  # <- here
                nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


def plankton(count=480, size=12):
    gen = torch.Generator().manual_seed(37)
    label = torch.randint(0, 4, (count,), generator=gen)
    grid = torch.linspace(-1, 1, size)
    angle = label * 3.1416 / 4
    along = torch.cos(angle)[:, None, None] * grid[:, None] + torch.sin(angle)[:, None, None] * grid
    image = torch.exp(-8 * along.square()) + 0.1 * torch.randn(count, size, size, generator=gen)
    return TensorDataset(image[:, None], label)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(plankton(), batch_size=24, shuffle=True)
    model = DeepConv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for epoch in range(6):
        for step, (image, label) in enumerate(loader):
            loss = F.cross_entropy(model(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4g}")


if __name__ == "__main__":
    main()
