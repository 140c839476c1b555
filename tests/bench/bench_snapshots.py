"""What one copy of the healthy state costs, as a share of a step and spread over its interval.

    python -m tests.bench.bench_snapshots [--loops tiny,mlp,many,gpt] [--every 100] [--steps 20]

Figures are medians of CPU seconds of the training thread; memory is that of both copies.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from tests.bench import bench_feed
from tests.bench.loops import LOOPS
from tuimon.model.units import size_bytes
from tuimon.train.control import snapshots


def row(name: str, every: int, steps: int) -> str:
    """One loop: a step without a copy, a warm copy, and their ratio."""
    import tuimon

    torch.manual_seed(0)
    loop = LOOPS[name](False)
    monitor = tuimon.watch(loop.model, loop.optimizer, snapshot_every=1 << 30)
    taken: list[float] = []
    stepped: list[float] = []
    try:
        for _ in range(4):
            loop.step()
        assert monitor._observer is not None
        track = monitor._observer.roster.primary
        assert track is not None
        slot = snapshots.Snapshot()
        slot.take(monitor._observer, track.step)  # allocates; what follows is warm
        for _ in range(steps):
            began_s = time.thread_time()
            loop.step()
            stepped.append(time.thread_time() - began_s)
            began_s = time.thread_time()
            slot.take(monitor._observer, track.step)
            taken.append(time.thread_time() - began_s)
        held = snapshots.SLOTS * snapshots._bytes_of(monitor._observer)
    finally:
        monitor.close()
    step_s, copy_s = statistics.median(stepped), statistics.median(taken)
    share = copy_s / step_s
    return (
        f"{name:6} {step_s * 1e3:9.3f} {copy_s * 1e3:9.3f} {share:9.1%} {share / every:12.3%}"
        f"   {size_bytes(held)}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default="tiny,mlp,many,gpt")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=bench_feed.folder()) as home:
        os.environ.update(TUIMON_SCRIBE="0", TUIMON_DIR=home, XDG_STATE_HOME=str(Path(home) / "s"))
        spread = f"1 in {options.every}"
        print(f"{'loop':6} {'step ms':>9} {'copy ms':>9} {'share':>9} {spread:>12}   memory")
        for name in options.loops.split(","):
            print(row(name, options.every, options.steps), flush=True)


if __name__ == "__main__":
    main()
