"""Mixed precision on the CPU: float16 gradients overflow, and the GradScaler backs off.

The loss is multiplied by a scale of 65536 before backward, so that small gradients survive in
float16. From step 400 to 519 the batches come from a source that reports in other units, 30 times
larger: gradients no longer fit into float16. Each time the scaler skips the update and halves the
scale, until they fit again; afterwards it doubles the scale every 60 good steps. Nothing has to be
done about it: skipped steps with a scale that recovers are how mixed precision works.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

FEATURES = 32
BATCH = 64


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of a linear relation with noise; 120 steps of it in other units."""
    inputs = torch.randn(BATCH, FEATURES)
    if 400 <= step < 520:
        inputs = inputs * 30
    target = inputs[:, :4].sum(dim=1, keepdim=True) + 0.1 * torch.randn(BATCH, 1)
    return inputs, target


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.08, help="seconds to wait after each step")
    args = parser.parse_args(argv)

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", growth_interval=60)

    for step in range(args.steps):
        inputs, target = make_batch(step)
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = model(inputs)
        loss = nn.functional.mse_loss(prediction.float(), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 0:
            scale = scaler.get_scale()
            print(f"step {step:5d}  loss {loss.item():.4g}  scale {scale:g}", flush=True)
        time.sleep(args.delay)
    print(f"final loss {loss.item():.4g}  scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
