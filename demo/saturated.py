"""The model that is said to explode: its loss jumps to about 50 and stays there, without any NaN.

Linear 5 to 64, ReLU, times 10, Linear 64 to 1, sigmoid, BCELoss; Adam with a learning rate of 0.5,
batches of 16 from 100 random samples, 20 epochs. What happens, measured over 20 seeds:

- Loss and gradient stay finite in all 20 runs. The sigmoid saturates at exactly 0 or 1, and BCELoss
  clamps its logarithm at -100: each sample on the wrong side costs 100. From the second epoch on
  the mean loss of an epoch lies between 38 and 67, about 100 times the share of wrong samples.
- The gradient of a saturated sigmoid is exactly 0: after at most 15 steps in 17 of the runs, and in
  at least 117 of the 140 steps in all of them.
- Clipping at 1.0 changes nothing to speak of (epochs between 30 and 67): a gradient of 0 cannot be
  made smaller, and Adam divides the gradient by its own size anyhow. What helps is a smaller
  learning rate, no factor of 10, and BCEWithLogitsLoss.

With --exp the factor becomes exp(0.1 x) and the learning rate 50. Then the weights do overflow:
the output is NaN after 4 to 6 steps, and BCELoss raises "all elements of input should be between
0 and 1", in all 20 runs, clipped or not.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

SAMPLES = 100
BATCH = 16
STEPS_PER_EPOCH = 7  # six batches of 16 and one of 4


class Classifier(nn.Module):
    """Five numbers in, one probability out, and something between that inflates them."""

    def __init__(self, use_exp: bool) -> None:
        super().__init__()
        self.hidden = nn.Linear(5, 64)
        self.output = nn.Linear(64, 1)
        self.use_exp = use_exp

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.hidden(inputs))
        hidden = torch.exp(0.1 * hidden) if self.use_exp else hidden * 10
        return torch.sigmoid(self.output(hidden))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20 * STEPS_PER_EPOCH)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.5, help="seconds to wait after each step")
    parser.add_argument("--exp", action="store_true", help="exp(0.1 x) in place of x * 10, lr 50")
    args = parser.parse_args(argv)

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    inputs = torch.randn(SAMPLES, 5)
    labels = torch.randint(0, 2, (SAMPLES, 1)).float()
    model = Classifier(args.exp)
    optimizer = torch.optim.Adam(model.parameters(), lr=50.0 if args.exp else 0.5)
    criterion = nn.BCELoss()

    for step in range(args.steps):
        batch = step % STEPS_PER_EPOCH
        if batch == 0:
            order = torch.randperm(SAMPLES)
            total = 0.0
        picked = order[batch * BATCH : (batch + 1) * BATCH]
        loss = criterion(model(inputs[picked]), labels[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if batch == STEPS_PER_EPOCH - 1:
            epoch = step // STEPS_PER_EPOCH + 1
            print(f"epoch {epoch:2d}  loss {total / STEPS_PER_EPOCH:.4g}", flush=True)
        time.sleep(args.delay)


if __name__ == "__main__":
    main()
