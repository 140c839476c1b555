"""Photo retouching: a network works on linear light and is compared in display space."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def to_display(linear):
    low = 12.92 * linear
    high = 1.055 * linear ** (1 / 2.4) - 0.055  # <- here
    return torch.where(linear <= 0.0031308, low, high)


def make_photos(count, size=12, seed=0):
    gen = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=gen)
    linear = nn.functional.interpolate(coarse, size=size, mode="bilinear").pow(2) * 0.8 + 0.1
    noisy = 0.6 * linear + 0.05 + 0.035 * torch.randn(count, 3, size, size, generator=gen)
    return TensorDataset(noisy, to_display(linear))


class Retoucher(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, padding=1), nn.GELU(),
            nn.Conv2d(width, 3, 3, padding=1),
        )
        nn.init.zeros_(self.body[-1].weight)

    def forward(self, photo):
        return photo + self.body(photo)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    photos = make_photos(160)
    loader = DataLoader(photos, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(4))
    model = Retoucher()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.95)
    for epoch in range(6):
        for step, (noisy, wanted) in enumerate(loader):
            loss = nn.functional.l1_loss(to_display(model(noisy)), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} display error {loss.item():.4f}")


if __name__ == "__main__":
    main()
