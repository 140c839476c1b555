"""Cell counting in microscopy: a fully convolutional network predicts a soft density map."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slides(Dataset):
    def __init__(self, count, size=20, seed=0):
        gen = torch.Generator().manual_seed(seed)
        axis = torch.arange(size).float()
        self.images, self.density = [], []
        for _ in range(count):
            density = torch.zeros(size, size)
            for row, col in torch.rand(4, 2, generator=gen) * (size - 1):
                density += torch.exp(-((axis[:, None] - row) ** 2 + (axis[None] - col) ** 2) / 4)
            self.density.append(density[None])
            self.images.append(density[None] + 0.2 * torch.randn(1, size, size, generator=gen))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.density[index]


class DensityNet(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ELU(), nn.Conv2d(width, width, 3, padding=1), nn.ELU()
        )
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, image):
        return self.out(self.trunk(image))


def density_loss(predicted, wanted):
    return (predicted - wanted).pow(2).mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Slides(96), batch_size=16, shuffle=True, drop_last=True)
    model = DensityNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8], gamma=0.5)
    for epoch in range(10):
        for image, wanted in loader:
            predicted = model(image)
            loss = density_loss(predicted, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        miss = (predicted.sum((1, 2, 3)) - wanted.sum((1, 2, 3))).abs().mean()
        print(f"epoch {epoch} loss {loss.item():.5g} count error {miss.item():.4g}")


if __name__ == "__main__":
    main()
