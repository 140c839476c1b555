"""Convolutional classifier with a memory-saving activation (only the output and the input are kept)."""
import torch
from torch import nn


class LeanSwish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * torch.sigmoid(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grad * (gate + y * (1 - gate))


class Swish(nn.Module):
    def forward(self, x):
        return LeanSwish.apply(x)


def network(classes):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), Swish(), nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), Swish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes),
    )


def scans(n, gen):
    y = torch.randint(0, 3, (n,), generator=gen)
    img = 0.3 * torch.randn(n, 1, 12, 12, generator=gen) + 0.1
    for i, c in enumerate(y.tolist()):
        if c == 0:
            img[i, :, 3:5] += 1.5
        elif c == 1:
            img[i, :, :, 7:9] += 1.5
        else:
            img[i, :, 4:8, 4:8] += 1.5
    return img, y


def main():
    torch.manual_seed(9)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(40)
    images, labels = scans(1440, gen)
    images[1000, :, :4] = 0.0
    images[1220, :, :, 9:] = 0.0
    model = network(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(120):
        sl = slice(12 * step, 12 * step + 12)
        loss = nn.functional.cross_entropy(model(images[sl]), labels[sl])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
