import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


def conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout, momentum=0.0005),
        nn.ReLU(),
    )


class TextureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = conv(2, 12)
        self.b = conv(12, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        x = F.avg_pool2d(self.a(x), 2)
        x = self.b(x)
        return self.head(x.mean((2, 3)))


def draw(n, kernels, gen):
    label = torch.randint(0, 3, (n,), generator=gen)
    noise = torch.randn(n, 2, 10, 10, generator=gen)
    maps = torch.stack([F.conv2d(noise, k, padding=1) for k in kernels])
    return 0.3 * maps[label, torch.arange(n)] + 0.5, label


def evaluate(net, data):
    net.eval()
    with torch.no_grad():
        loss = F.cross_entropy(net(data[0]), data[1]).item()
    net.train()
    return loss


def main():
    torch.manual_seed(41)
    gen = torch.Generator().manual_seed(410)
    kernels = torch.randn(3, 2, 2, 3, 3, generator=gen) / 3
    held_out = draw(256, kernels, gen)
    net = TextureNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(200):
        x, y = draw(48, kernels, gen)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step} train {loss.item():.4f} val {evaluate(net, held_out):.4f}")


if __name__ == "__main__":
    main()
