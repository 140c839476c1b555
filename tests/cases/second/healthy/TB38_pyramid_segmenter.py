"""Land-cover segmentation with an image-level pooling branch (ASPP style)."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def conv_bn(cin, cout, kernel=3):
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(cout), nn.ReLU()
    )


class Segmenter(nn.Module):
    def __init__(self, classes=3, width=12):
        super().__init__()
        self.stem = conv_bn(2, width)
        self.local = conv_bn(width, width)
        self.context = conv_bn(width, width, kernel=1)
        self.out = nn.Conv2d(2 * width, classes, 1)

    def forward(self, x):
        h = self.stem(x)
        whole = self.context(F.adaptive_avg_pool2d(h, 1))
        whole = whole.expand(-1, -1, *h.shape[2:])
        return self.out(torch.cat([self.local(h), whole], 1))


def land_tiles(count=241, size=16):
    gen = torch.Generator().manual_seed(38)
    height = F.avg_pool2d(torch.randn(count, 1, size + 6, size + 6, generator=gen), 7, stride=1)[:, 0]
    cover = torch.bucketize(height, torch.tensor([-0.06, 0.06]))
    bands = torch.stack([5 * height, (cover == 1).float()], 1)
    return TensorDataset(bands + 0.3 * torch.randn(bands.shape, generator=gen), cover)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(land_tiles(), batch_size=8, shuffle=True, drop_last=True)
    model = Segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    for epoch in range(3):
        for bands, cover in loader:
            loss = F.cross_entropy(model(bands), cover)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
