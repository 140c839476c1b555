import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        self.inlet = nn.Linear(10, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.outlet = nn.Linear(width, 10)

    def forward(self, x):
        h = F.silu(self.inlet(x))
        for layer in self.layers:
            h = F.silu(layer(h))
        return self.outlet(self.norm(h))


def main():
    torch.manual_seed(12)
    net = Encoder()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(300):
        x = torch.randn(128, 10)
        target = x[:, torch.arange(9, -1, -1)] * x.roll(1, 1).sign()
        loss = F.mse_loss(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
