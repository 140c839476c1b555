"""Docking scores of ligands; small memory, so gradients are gathered over several micro-batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class DockingNet(nn.Module):
    def __init__(self, features, width=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, fingerprint):
        return self.net(fingerprint).squeeze(1)


def make_ligands(count=1024, features=20, seed=8):
    gen = torch.Generator().manual_seed(seed)
    bits = torch.randn(count, features, generator=gen)
    score = bits[:, :5].sum(1) + 1.5 * bits[:, 5] * bits[:, 6]
    return TensorDataset(bits, score)


class Trainer:
    def __init__(self, model, lr, accumulate):
        self.model, self.accumulate = model, accumulate
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def epoch(self, loader):
        total = 0.0
        self.optimizer.zero_grad()
        for number, (bits, score) in enumerate(loader, start=1):
            loss = nn.functional.mse_loss(self.model(bits), score)
            (loss / self.accumulate).backward()
            total += loss.item()
            if number % self.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return total / len(loader)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_ligands(), batch_size=8, shuffle=True)
    trainer = Trainer(DockingNet(20), lr=0.02, accumulate=16)
    for epoch in range(6):
        print(f"epoch {epoch} mse {trainer.epoch(loader):.4g}")


if __name__ == "__main__":
    main()
