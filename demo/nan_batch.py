"""One missing reading in the data, written as NaN, ends a healthy training.

Half-way through the data a single number is NaN. The batch that holds it has a NaN loss, its
gradient is NaN in every parameter, and one update later so is every weight: no later batch can
bring them back. Clipping does not help, since NaN divided by a norm of NaN is NaN. Stopping before
that update, or leaving the batch out, would have.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES = 16
CLASSES = 4
BATCH = 32


def make_data(batches: int) -> TensorDataset:
    """Labelled readings in the order in which they were taken, one of them missing."""
    readings = torch.randn(batches * BATCH, FEATURES)
    scores = readings @ torch.randn(FEATURES, CLASSES) + torch.randn(batches * BATCH, CLASSES)
    readings[batches // 2 * BATCH + BATCH // 3, 5] = float("nan")
    return TensorDataset(readings, scores.argmax(dim=1))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.08, help="seconds to wait after each step")
    args = parser.parse_args(argv)

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    loader = DataLoader(make_data(args.steps), batch_size=BATCH)
    model = nn.Sequential(
        nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, CLASSES)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step, (readings, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(readings), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:5d}  loss {loss.item():.4g}", flush=True)
        time.sleep(args.delay)
    print(f"final loss {loss.item():.4g}")


if __name__ == "__main__":
    main()
