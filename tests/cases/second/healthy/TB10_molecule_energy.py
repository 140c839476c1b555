"""Energy of small molecules from pair distances; atom positions are refined by the net first."""

import torch
from torch import nn
from torch.nn import functional as F


class EnergyNet(nn.Module):
    def __init__(self, kinds=4, dim=24):
        super().__init__()
        self.kind = nn.Embedding(kinds, dim)
        self.shift = nn.Linear(dim, 3)
        self.pair = nn.Sequential(nn.Linear(9, dim), nn.SiLU(), nn.Linear(dim, 1))
        self.register_buffer("centres", torch.linspace(0, 4, 8))

    def forward(self, kinds, position):
        h = self.kind(kinds)
        position = position + 0.1 * torch.tanh(self.shift(h))
        offset = position[:, :, None] - position[:, None, :]
        distance = (offset.pow(2).sum(-1) + 1e-6).sqrt()
        radial = torch.exp(-(distance[..., None] - self.centres).square())
        charge = (h[:, :, None] * h[:, None, :]).mean(-1, keepdim=True)
        energy = self.pair(torch.cat([radial, charge], -1)).squeeze(-1)
        off_diagonal = 1 - torch.eye(kinds.shape[1])
        return (energy * off_diagonal).sum((1, 2)) / kinds.shape[1]


def molecules(gen, size=32, atoms=6):
    kinds = torch.randint(0, 4, (size, atoms), generator=gen)
    position = 1.5 * torch.randn(size, atoms, 3, generator=gen)
    distance = torch.cdist(position, position)
    energy = torch.exp(-distance).sum((1, 2)) / atoms - 1
    return kinds, position, energy


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(24)
    model = EnergyNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(130):
        kinds, position, energy = molecules(gen)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(kinds, position)
            loss = F.mse_loss(pred.float(), energy)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
