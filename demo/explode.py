"""A wide-and-deep regression under SGD whose gradient norm climbs for a minute, then explodes.

The inputs are raw sensor readings with a mean of 3, and a linear shortcut sees them unscaled. That
makes the loss steep in one direction: with 8 such inputs its curvature there is 2 * (8 * 9 + 2) =
148, and gradient descent is stable only below a learning rate of 2 / 148 = 0.0135. The warm-up ends
at 0.014. The loss falls at first; as the learning rate nears the edge, the updates overshoot
further and further. The gradient norm climbs from step 500 on (a minute at the default pace) and
is not finite any more between step 1,170 and 1,220, measured over 12 seeds.

Clipping the gradient to a norm of 1.0 bounds the overshoot. Switched on at step 1,000 or 1,100 it
led to a loss of about 0.2 with every seed, lower than any before, although the learning rate stays
where it is. At step 1,150 the weights are mostly too far off to come back within this run.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

SENSORS = 8
SAMPLES = 20_000
BATCH = 64


class WideAndDeep(nn.Module):
    """A linear shortcut beside a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(SENSORS, 1)
        self.deep = nn.Sequential(
            nn.BatchNorm1d(SENSORS),
            nn.Linear(SENSORS, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        return self.wide(readings) + self.deep(readings)


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Sensor readings around 3, and what they say about the machine."""
    state = torch.randn(SAMPLES, SENSORS)
    target = torch.sin(state[:, :1]) + state[:, 1:2] * state[:, 2:3] + 0.5 * state[:, 3:4]
    return state + 3, target + 0.3 * torch.randn(SAMPLES, 1)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.08, help="seconds to wait after each step")
    args = parser.parse_args(argv)

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    readings, target = make_data()
    model = WideAndDeep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.014)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.6, total_iters=1200)

    for step in range(args.steps):
        picked = torch.randint(SAMPLES, (BATCH,))
        loss = nn.functional.mse_loss(model(readings[picked]), target[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm_up.step()
        if step % 50 == 0:
            print(f"step {step:5d}  loss {loss.item():.4g}", flush=True)
        time.sleep(args.delay)

    with torch.no_grad():
        final = nn.functional.mse_loss(model(readings), target)
    print(f"final loss {final.item():.4g}")


if __name__ == "__main__":
    main()
