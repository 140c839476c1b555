"""Dense displacement field of an elastic plate predicted from its load map, autocast to half precision."""
import torch
from torch import nn
import torch.nn.functional as F


class FieldNet(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.enc = nn.Conv2d(1, ch, 3, padding=1)
        self.mid = nn.Conv2d(ch, ch, 3, padding=1)
        self.dec = nn.Conv2d(ch, 2, 3, padding=1)
        nn.init.zeros_(self.dec.weight)
        nn.init.zeros_(self.dec.bias)

    def forward(self, load):
        return self.dec(F.silu(self.mid(F.silu(self.enc(load)))))


def plate(n, side):
    load = F.avg_pool2d(torch.randn(n, 1, side + 4, side + 4), 5, 1) * 5
    ker = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, -1.0], [0.0, -1.0, 0.0]])
    ux = F.conv2d(load, ker[None, None], padding=1)
    uy = F.conv2d(load, ker.T.flip(0)[None, None].contiguous(), padding=1)
    return load, 0.1 * torch.cat([ux, uy], 1)


def main():
    torch.manual_seed(33)
    torch.set_num_threads(1)
    model = FieldNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(100):
        load, field = plate(8, 32)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(load)
        loss = 1e-4 * F.mse_loss(pred.float(), field)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4e}")


if __name__ == "__main__":
    main()
