"""Match the channel correlations (style) of a texture with a small convolutional generator under autocast."""
import torch
from torch import nn


class TextureNet(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.first = nn.Conv2d(4, ch, 3, padding=1)
        self.second = nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, z):
        return self.second(nn.functional.gelu(self.first(z)))


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 5, padding=2)
        for p in self.parameters():
            p.requires_grad_(False)

    def forward(self, img):
        return torch.relu(self.conv(img)).flatten(2)


def gram(feat):
    return feat @ feat.transpose(1, 2)


def texture(n, side):
    u = torch.linspace(0, 12, side)
    phase = torch.rand(n, 1, 1, 1) * 6.28
    base = torch.sin(u[None, None, :, None] + phase) * torch.cos(0.7 * u[None, None, None, :] + phase)
    return 40 * base * torch.tensor([1.0, 0.6, 0.3])[None, :, None, None] + 4.0


def main():
    torch.manual_seed(15)
    torch.set_num_threads(1)
    side, n = 32, 4
    net, features = TextureNet(), Features()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-2)
    for step in range(100):
        target = texture(n, side)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(torch.randn(n, 4, side, side))
            want = gram(features(target))
            have = gram(features(out))
        scale = side * side
        loss = nn.functional.mse_loss(have.float() / scale, want.float() / scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.5g}")


if __name__ == "__main__":
    main()
