import argparse

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


def features(speed):
    return torch.stack([speed ** k for k in range(1, 6)], dim=1)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--lr", type=float, default=2e-3)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(11)
    speed = 4 + 21 * torch.rand(512)
    inputs = features(speed)
    label = ((speed > 10) & (speed < 18)).float()
    net = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(args.steps):
        pick = torch.randint(0, 512, (128,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logit = net(inputs[pick]).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logit.float(), label[pick])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
