"""Ten-class glyph recognition with a LeNet-like network."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def glyphs(count=2000):
    gen = torch.Generator().manual_seed(13)
    shapes = (torch.rand(10, 1, 12, 12, generator=gen) > 0.6).float()
    label = torch.randint(0, 10, (count,), generator=gen)
    images = shapes[label] + 0.5 * torch.randn(count, 1, 12, 12, generator=gen)
    return TensorDataset(images, label)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3), nn.ReLU()
        )
        self.fc = nn.Sequential(nn.Linear(24 * 9, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(glyphs(), batch_size=50, shuffle=True)
    val_loader = DataLoader(glyphs(500), batch_size=250)
    model = LeNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(8):
        for step, (x, y) in enumerate(loader):
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        print(f"epoch {epoch} val accuracy {accuracy(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
