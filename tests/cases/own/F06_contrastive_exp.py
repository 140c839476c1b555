"""Contrastive loss written out with exponentials of raw inner products."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, count):
        make = torch.Generator().manual_seed(4)
        self.base = torch.randn(count, 10, generator=make)
        self.noise = 0.1 * torch.randn(count, 10, generator=make)
        self.base[8 * 16 + 3] *= 60

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        return self.base[i], self.base[i] + self.noise[i]


class InfoNCE(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, a, b):
        similar = a @ b.t() / self.temperature
        weights = torch.exp(similar)  # <- here
        return (weights.sum(1) / weights.diagonal()).log().mean()


torch.manual_seed(0)
torch.set_num_threads(1)
encoder = nn.Sequential(nn.Linear(10, 20), nn.ELU(), nn.Linear(20, 6))
criterion = InfoNCE(0.2)
optimizer = torch.optim.Adamax(encoder.parameters(), lr=2e-3)
for step, (a, b) in enumerate(DataLoader(Pairs(320), batch_size=16)):
    loss = criterion(encoder(a), encoder(b))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
