import torch
from torch import nn

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


class Modulated(nn.Module):
    def __init__(self, dim, levels):
        super().__init__()
        self.lin = nn.Linear(dim, dim)
        self.scale = nn.Parameter(torch.empty(levels, dim))
        self.shift = nn.Parameter(torch.zeros(levels, dim))
        self.act = nn.SiLU()

    def forward(self, x, level):
        return self.act(self.lin(x) * (1 + self.scale[level]) + self.shift[level])


class Denoiser(nn.Module):
    def __init__(self, dim=32, levels=10):
        super().__init__()
        self.levels = levels
        self.first = nn.Linear(2, dim)
        self.mid1 = Modulated(dim, levels)
        self.mid2 = Modulated(dim, levels)
        self.last = nn.Linear(dim, 2)

    def forward(self, x, level):
        h = self.first(x)
        h = h + self.mid1(h, level)
        h = h + self.mid2(h, level)
        return self.last(h)


def main():
    torch.manual_seed(19)
    net = Denoiser()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    alpha = torch.linspace(0.9, 0.1, net.levels)
    for step in range(300):
        angle = 6.2832 * torch.rand(128)
        clean = torch.stack([angle.cos(), angle.sin()], 1)
        level = torch.randint(0, net.levels, (128,))
        noise = torch.randn(128, 2)
        a = alpha[level].unsqueeze(1)
        noisy = a.sqrt() * clean + (1 - a).sqrt() * noise
        loss = nn.functional.mse_loss(net(noisy, level), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
