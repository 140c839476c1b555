from dataclasses import dataclass

import torch
from torch import nn

torch.set_num_threads(1)


@dataclass
class Config:
    shots: int = 600
    batch: int = 16
    lr: float = 3e-3
    clip: float = 1.0
    steps: int = 300


def load(cfg):
    g = torch.Generator().manual_seed(5)
    diag = torch.randn(cfg.shots, 6, generator=g)
    shape = 0.45 + 0.15 * torch.tanh(diag[:, 0] - diag[:, 1] * diag[:, 2])
    density = 4 * shape  # 1e18 electrons per cubic metre
    return diag, density


def main():
    cfg = Config()
    torch.manual_seed(5)
    diag, density = load(cfg)
    net = nn.Sequential(nn.Linear(6, 256), nn.Tanh(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=cfg.lr, weight_decay=0.0)
    for step in range(cfg.steps):
        pick = torch.randint(0, cfg.shots, (cfg.batch,))
        pred = net(diag[pick]).squeeze(-1)
        loss = nn.functional.mse_loss(pred, density[pick])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), cfg.clip)
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.5g}")


main()
