"""Texture patches: conv net with batch norm, validation after every epoch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout, momentum=0.001),  # <- here
        nn.ReLU(),
    )


class PatchNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.body = nn.Sequential(
            conv_block(1, 16), nn.MaxPool2d(2), conv_block(16, 24), nn.MaxPool2d(2), conv_block(24, 24)
        )
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def textures(count, seed):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 5, (count,), generator=gen)
    grid = torch.arange(16).float()
    freq = 0.4 + 0.35 * label[:, None, None]
    wave = torch.sin(freq * grid[None, :, None] + 0.5 * freq * grid[None, None, :])
    shift = 0.3 * torch.randn(count, 16, 16, generator=gen)
    return TensorDataset((3.0 + 2 * wave + shift)[:, None], label)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    loss = hits = 0.0
    for x, y in loader:
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        hits += (logits.argmax(1) == y).sum().item()
    n = len(loader.dataset)
    return loss / n, hits / n


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_loader = DataLoader(textures(1200, 1), batch_size=40, shuffle=True)
    val_loader = DataLoader(textures(300, 2), batch_size=100)
    model = PatchNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        model.train()
        total = 0.0
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        val_loss, val_acc = validate(model, val_loader)
        print(f"epoch {epoch} train {total / len(train_loader):.4f} val {val_loss:.4f} val acc {val_acc:.3f}")


if __name__ == "__main__":
    main()
