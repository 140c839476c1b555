"""Semantic segmentation of small road scenes with a tiny encoder-decoder."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    """Images with a mask of class ids; unclear pixels carry the value of the void class."""

    def __init__(self, count=400, size=16):
        gen = torch.Generator().manual_seed(31)
        self.mask = torch.zeros(count, size, size, dtype=torch.uint8)
        for i in range(count):
            horizon = int(torch.randint(4, 10, (1,), generator=gen))
            left = int(torch.randint(0, 10, (1,), generator=gen))
            self.mask[i, horizon:] = 1
            self.mask[i, horizon:, left : left + 4] = 2
            if i % 150 == 149:
                self.mask[i, :2] = 255
        colour = torch.tensor([[0.2, 0.4, 0.9], [0.4, 0.4, 0.4], [0.8, 0.3, 0.2]])
        clean = colour[self.mask.long().clamp(max=2)].permute(0, 3, 1, 2)
        self.image = clean + 0.2 * torch.randn(clean.shape, generator=gen)

    def __len__(self):
        return len(self.mask)

    def __getitem__(self, i):
        return self.image[i], self.mask[i].long()


class TinySeg(nn.Module):
    def __init__(self, classes=3, width=12):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.mid = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        return self.out(F.relu(self.up(self.mid(self.down(x)))))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Scenes(), batch_size=16, shuffle=False)
    model = TinySeg()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    step = 0
    for epoch in range(3):
        for image, mask in loader:
            loss = F.cross_entropy(model(image), mask)  # <- here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
