"""Fine-tune a pre-trained image encoder on a new task with another number of classes."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        )
        self.head = nn.Linear(24 * 9, classes)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def stamps(classes, seed, count=800):
    gen = torch.Generator().manual_seed(seed)
    shape = (torch.rand(classes, 1, 12, 12, generator=gen) > 0.6).float()
    label = torch.randint(0, classes, (count,), generator=gen)
    return TensorDataset(shape[label] + 0.4 * torch.randn(count, 1, 12, 12, generator=gen), label)


def run(model, optimizer, loader, epochs, tag):
    for epoch in range(epochs):
        total = hits = 0.0
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
            hits += (logits.argmax(1) == y).sum().item()
        n = len(loader.dataset)
        print(f"{tag} epoch {epoch} loss {total / n:.4f} accuracy {hits / n:.3f}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Encoder(classes=6)
    for p in model.body.parameters():
        p.requires_grad_(False)
    loader = DataLoader(stamps(9, seed=36), batch_size=40, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # <- here
    model.head = nn.Linear(24 * 9, 9)
    run(model, optimizer, loader, 10, "finetune")


if __name__ == "__main__":
    main()
