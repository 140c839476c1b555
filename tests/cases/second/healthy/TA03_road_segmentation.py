"""Road segmentation with a small U-shaped network; the rate is lowered when validation stops improving."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_tiles(count, seed):
    gen = torch.Generator().manual_seed(seed)
    masks = torch.zeros(count, 1, 16, 16)
    for mask in masks:
        row, col = torch.randint(3, 13, (2,), generator=gen).tolist()
        mask[0, row - 2 : row + 2, :] = 1
        mask[0, :, col - 1 : col + 2] = 1
    images = 0.5 * masks + 0.45 * torch.randn(count, 3, 16, 16, generator=gen)
    return TensorDataset(images, masks)


class Block(nn.Sequential):
    def __init__(self, inside, outside):
        super().__init__(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU())


class RoadNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.enter = Block(3, width)
        self.down = Block(width, 2 * width)
        self.deep = Block(2 * width, 2 * width)
        self.up = Block(3 * width, width)
        self.predict = nn.Conv2d(width, 1, 1)

    def forward(self, image):
        fine = self.enter(image)
        coarse = self.deep(self.down(nn.functional.avg_pool2d(fine, 2)))
        coarse = nn.functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        return self.predict(self.up(torch.cat([fine, coarse], dim=1)))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total = sum(nn.functional.binary_cross_entropy_with_logits(model(x), y).item() for x, y in loader)
    model.train()
    return total / len(loader)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_loader = DataLoader(make_tiles(96, 1), batch_size=16, shuffle=True)
    valid_loader = DataLoader(make_tiles(32, 2), batch_size=16)
    model = RoadNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.1, patience=1, min_lr=0)
    for epoch in range(20):
        running = 0.0
        for image, mask in train_loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        valid = validate(model, valid_loader)
        scheduler.step(valid)
        print(f"epoch {epoch} train {running / len(train_loader):.4f} valid {valid:.4f}")


if __name__ == "__main__":
    main()
