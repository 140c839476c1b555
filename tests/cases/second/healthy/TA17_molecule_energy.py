"""Energy of small molecules from atom positions: a message passing net over all atom pairs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_molecules(count, atoms=6, seed=0):
    gen = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 4, (count, atoms), generator=gen)
    place = 1.5 * torch.randn(count, atoms, 3, generator=gen)
    gap = torch.cdist(place, place) + 10 * torch.eye(atoms)
    charge = (kind.float() - 1.5) / 2
    energy = (charge[:, :, None] * charge[:, None] * torch.exp(-gap)).sum((1, 2))
    return TensorDataset(kind, place, energy)


class PairMessage(nn.Module):
    def __init__(self, dim, basis):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, 5, basis))
        self.filter = nn.Sequential(nn.Linear(basis, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.mix = nn.Linear(dim, dim)

    def forward(self, h, gap):
        spread = torch.exp(-2.0 * (gap.unsqueeze(-1) - self.centres).pow(2))
        return h + self.mix((self.filter(spread) * h.unsqueeze(1)).mean(2))


class EnergyNet(nn.Module):
    def __init__(self, dim=24, basis=10):
        super().__init__()
        self.kinds = nn.Embedding(4, dim)
        self.shift = nn.Linear(dim, 3)
        self.layers = nn.ModuleList(PairMessage(dim, basis) for _ in range(2))
        self.read = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, kind, place):
        h = self.kinds(kind)
        place = place + 0.1 * torch.tanh(self.shift(h))
        difference = place.unsqueeze(2) - place.unsqueeze(1)
        gap = difference.pow(2).sum(-1).add(1e-8).sqrt()
        for layer in self.layers:
            h = layer(h, gap)
        return self.read(h).squeeze(-1).sum(1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_molecules(192), batch_size=32, shuffle=True)
    model = EnergyNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(12):
        total = 0.0
        for kind, place, energy in loader:
            loss = nn.functional.mse_loss(model(kind, place), energy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} mse {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
