"""What watching costs: step time of each variant over the bare step, interleaved in one process.

    python -m tests.bench.bench_train --rivals --minutes 6 [--loops tiny,mlp,many,gpt]

Beside tuimon stand the usual ways to get similar facts: a loop of `isfinite().all()` over the
gradients, `torch.autograd.set_detect_anomaly`, and histograms of every gradient at every step
(`wandb.watch` offline where wandb is installed, else TensorBoard's writer, else left out).
All of them take turns with bare steps, block by block, on one model. Figures are CPU seconds of
the training thread; each ratio is the median over the blocks, each over the bare one of its
round, with its quartiles. "self" is tuimon's own account of its time as a share of the step, which
neighbours disturb far less than the ratio. Below the table: the gate with nothing pending, what
publishing a step costs, and the share of the sampled extras. Never a gate; what a step may do is
counted by `tests/train/test_cost.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tests.bench import bench_extras, bench_feed
from tests.bench.loops import LOOPS, Loop
from tests.bench.rivals import Variant, rivals
from tuimon.feed import registry
from tuimon.feed.codec import decode
from tuimon.feed.ring import RingReader
from tuimon.model.records import Step

BUDGETS = {
    ("tiny", False): 1.20,
    ("tiny", True): 1.20,
    ("mlp", False): 1.04,
    ("many", False): 1.06,
    ("gpt", False): 1.01,
    ("gpt", True): 1.005,
}
GATE_BUDGET_S = 3e-6
# Shares of the time there is; a long step needs many of them.
SHARES = {"tiny": 0.09, "mlp": 0.2, "many": 0.2, "gpt": 0.43}
SHARE_WITHOUT_CLIPPING = 0.65  # of a loop's time, where the rivals run too
SHARE_EXTRAS = 0.08
WARM_UP = 12  # watched steps: first batches, first checks of the weights
MIN_ROUNDS = 3
RIVALS_EVERY = 3  # rounds: their ratios are far from 1 and need fewer
LONG_STEP_S = 0.2  # needs no step to warm up before a block


class Own:
    """tuimon's own account of its time in the blocks in which it watches, from its records."""

    def __init__(self) -> None:
        self._reader = RingReader(registry.find_run(str(os.getpid())).ring(), at_end=True)
        self._cost_s: list[float] = []
        self._step_s: list[float] = []

    def skip(self) -> None:
        """What has been published so far does not count."""
        self._drain()

    def take(self) -> None:
        """Count the steps of a block."""
        for each in self._drain():
            if each.step_s is not None:  # that of the first one after a gap is not known
                self._cost_s.append(each.cost_s or 0.0)
                self._step_s.append(each.step_s)

    def share(self) -> float:
        """Median of self-time over that of the step."""
        self._reader.close()
        return statistics.median(self._cost_s) / statistics.median(self._step_s)

    def _drain(self) -> list[Step]:
        found: list[Step] = []
        while payloads := self._reader.read(10_000, 5.0):
            found += [each for each in map(decode, payloads) if isinstance(each, Step)]
        return found


class Row:
    """One loop with every variant on it, taking turns with bare steps."""

    def __init__(self, loop: Loop, others: dict[str, Variant]) -> None:
        import tuimon

        self.bare_s: list[float] = []
        self.ratios: dict[str, list[float]] = {"tuimon": [], **{name: [] for name in others}}
        self._loop = loop
        self._others = others
        self._monitor = tuimon.watch(loop.model, loop.optimizer)
        self._own = Own()

    def measure(self, seconds: float, block_s: float) -> float:
        """Rounds until the time is used up; returns tuimon's own share."""
        until_s = time.perf_counter() + seconds
        for _ in range(WARM_UP):
            self._loop.step()
        began_s = time.perf_counter()
        self._loop.step()
        step_s = time.perf_counter() - began_s
        self._count, self._warms = max(2, int(block_s / step_s)), step_s < LONG_STEP_S
        self._own.skip()
        while len(self.bare_s) < MIN_ROUNDS or time.perf_counter() < until_s:
            self._round()
        self._monitor.close()
        return self._own.share()

    def _round(self) -> None:
        with self._monitor.detached():
            bare_s = self._block(self._loop.step)
            self.bare_s.append(bare_s)
            if len(self.bare_s) % RIVALS_EVERY == 1:
                for name, variant in self._others.items():
                    with variant() as step:
                        self.ratios[name].append(self._block(step) / bare_s)
        self.ratios["tuimon"].append(self._block(self._loop.step) / bare_s)
        self._own.take()

    def _block(self, step: Callable[[], None]) -> float:
        """CPU seconds of one step in the training thread, which neighbours disturb least."""
        if self._warms:
            step()
        began = time.thread_time()
        for _ in range(self._count):
            step()
        return (time.thread_time() - began) / self._count


def idle_gate_s(loop: Loop) -> float:
    """Seconds that the gate takes when nothing is pending: the least disturbed block."""
    import tuimon

    monitor = tuimon.watch(loop.model, loop.optimizer)
    for _ in range(10):
        loop.step()
    assert monitor._observer is not None
    track = monitor._observer.roster.primary
    assert track is not None
    blocks = []
    for _ in range(50):
        began_s = time.perf_counter()
        for _ in range(500):
            track.enter()
        blocks.append((time.perf_counter() - began_s) / 500)
    monitor.close()
    return min(blocks)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default="tiny,mlp,many,gpt")
    parser.add_argument("--minutes", type=float, default=3.0, help="for all of it, about")
    parser.add_argument("--block", type=float, default=0.2, help="seconds of each block")
    parser.add_argument("--rivals", action="store_true", help="compare with the usual ways too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.loops.split(",")
    whole_s = options.minutes * 60 / (sum(SHARES[name] for name in names) + SHARE_EXTRAS)
    with tempfile.TemporaryDirectory(dir=bench_feed.folder()) as home:
        os.environ.update(TUIMON_SCRIBE="0", TUIMON_DIR=home, XDG_STATE_HOME=str(Path(home) / "s"))
        print(f"{'loop':6} {'clips':5} {'bare ms':>8} {'variant':15} {'ratio':>7} quartiles")
        for name in names:
            seconds = whole_s * SHARES[name]
            share = SHARE_WITHOUT_CLIPPING if options.rivals else 0.5
            print_row(name, False, seconds * share, options)
            print_row(name, True, seconds * (1 - share), options)
        gate_s = idle_gate_s(LOOPS["tiny"](False))
        print(f"\ngate with nothing pending: {gate_s * 1e6:.2f} µs, budget {GATE_BUDGET_S * 1e6:g}")
        print("\npublishing a step")
        bench_feed.table()
        print("\nsampled extras")
        rounds = max(2, int(whole_s * SHARE_EXTRAS / (3 * options.block)))
        bench_extras.table(["mlp"], rounds=rounds, block_s=options.block)


def print_row(name: str, clip: bool, seconds: float, options: argparse.Namespace) -> None:
    """Measure one loop, and print a line for each variant."""
    torch.manual_seed(0)
    loop = LOOPS[name](clip)
    with contextlib.ExitStack() as stack:
        row = Row(loop, rivals(loop, stack) if options.rivals and not clip else {})
        own = row.measure(seconds, options.block)
    bare_ms = statistics.median(row.bare_s) * 1e3
    for title, ratios in row.ratios.items():
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        line = f"{name:6} {clip!s:5} {bare_ms:8.3f} {title:15} {middle:7.3f} {low:.3f}–{high:.3f}"
        if title == "tuimon":
            budget = BUDGETS.get((name, clip))
            line += f"  self {own:.1%}" + (f"  budget {budget}" if budget else "")
        print(line, flush=True)


if __name__ == "__main__":
    main()
