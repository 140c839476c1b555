import torch
from torch import nn

torch.set_num_threads(1)


class Stage(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=2, padding=1)
        self.norm = nn.InstanceNorm2d(cout, affine=True)

    def forward(self, x):
        return nn.functional.relu(self.norm(self.conv(x)))


class Encoder(nn.Module):
    def __init__(self, stages=4):
        super().__init__()
        widths = [3, 8, 12, 16, 24][:stages + 1]
        self.stages = nn.ModuleList(Stage(a, b) for a, b in zip(widths, widths[1:]))
        self.head = nn.Linear(widths[-1], 2)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


def main():
    torch.manual_seed(71)
    net = Encoder()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    ramp = torch.linspace(-1, 1, 16)
    for step in range(100):
        label = torch.randint(0, 2, (32,))
        pattern = torch.where(label[:, None, None] == 0, (ramp * 12).sin()[None, :, None], (ramp * 4).sin()[None, :, None])
        x = pattern[:, None] + 0.4 * torch.randn(32, 3, 16, 16)
        loss = nn.functional.cross_entropy(net(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


main()
