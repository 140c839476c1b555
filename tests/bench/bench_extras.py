"""What sampled extras cost: bare, watched without a budget, watched with the default one.

    python -m tests.bench.bench_extras [--loops mlp,many] [--rounds 60]

The three take turns in one process, block by block. A sample falls into few blocks, so ratios
are those of the sums over all blocks, in CPU seconds of the training thread; the interval is
the middle half of sums over resampled rounds. "governor" is its own estimate, in wall time: the
stride, what one sample costs, and the share of step time. Never a gate.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tests.bench.loops import LOOPS, Loop
from tuimon.train.samples.governor import Governor

RESAMPLES = 400


def compare(loop: Loop, rounds: int, block_s: float) -> tuple[list[list[float]], Governor]:
    """(seconds a step of each variant, round by round; the governor at the end)."""
    import tuimon

    monitor = tuimon.watch(loop.model, loop.optimizer)
    assert monitor._observer is not None
    extras = monitor._observer.extras
    sampling, nothing = extras.governor, Governor(0.0)
    for _ in range(60):
        loop.step()
    began = time.perf_counter()
    for _ in range(10):
        loop.step()
    count = max(3, int(block_s / ((time.perf_counter() - began) / 10)))
    found = []
    for _ in range(rounds):
        with monitor.detached():
            row = [_block(loop.step, count)]
        for governor in (nothing, sampling):
            extras.stop()
            extras.governor = governor
            row.append(_block(loop.step, count))
        found.append(row)
    monitor.close()
    return found, sampling


def _block(step: Callable[[], None], count: int) -> float:
    began = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - began) / count


def ratio(rows: list[list[float]], over: int, under: int) -> tuple[float, float, float]:
    """(ratio of the sums, lower and upper quartile over resampled rounds)."""
    picked = random.Random(0)
    sums = []
    for _ in range(RESAMPLES):
        some = picked.choices(rows, k=len(rows))
        sums.append(sum(row[over] for row in some) / sum(row[under] for row in some))
    low, _, high = statistics.quantiles(sums, n=4)
    return sum(row[over] for row in rows) / sum(row[under] for row in rows), low, high


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default="mlp,many")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--block", type=float, default=0.3, help="seconds of each block")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(TUIMON_SCRIBE="0", TUIMON_DIR=home, XDG_STATE_HOME=str(Path(home) / "s"))
        table(options.loops.split(","), rounds=options.rounds, block_s=options.block)


def table(loops: list[str], *, rounds: int, block_s: float) -> None:
    """Print a row for each loop."""
    print(
        f"{'loop':6} {'bare ms':>8} {'budget 0':>19} {'default':>19} {'extras alone':>19}  governor"
    )
    for name in loops:
        torch.manual_seed(0)
        rows, governor = compare(LOOPS[name](False), rounds, block_s)
        bare = statistics.median(row[0] for row in rows)
        pairs = ((1, 0), (2, 0), (2, 1))
        ratios = [
            f"{middle:.3f} {low:.3f}–{high:.3f}"
            for middle, low, high in (ratio(rows, *pair) for pair in pairs)
        ]
        sample = (governor.cost_s or 0.0) / (governor.step_s or 1.0)
        settled, share = sample / (governor.stride or 1), governor.share_frac or 0.0
        print(
            f"{name:6} {bare * 1e3:8.3f} {ratios[0]:>19} {ratios[1]:>19} {ratios[2]:>19}"
            f"  1/{governor.stride}, a sample is {sample:.2f} of a step,"
            f" {settled:.2%} settled, {share:.2%} with the first ones",
            flush=True,
        )


if __name__ == "__main__":
    main()
