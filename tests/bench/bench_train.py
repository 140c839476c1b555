"""What watching costs: step time of each variant over the bare step, interleaved in one process.

    python -m tests.bench.bench_train [--loops tiny,mlp] [--rounds 15]

Beside tuimon stand the usual ways to get similar facts: a loop of `isfinite().all()` over the
gradients, `torch.autograd.set_detect_anomaly`, and histograms of every gradient at every step
(`wandb.watch` offline where wandb is installed, else TensorBoard's writer, else left out).
Figures are CPU seconds of the training thread; each ratio is the median over paired blocks with
its quartiles. "self" is tuimon's own account of its time as a share of the step, which
neighbours disturb far less than the ratio. Below the table: the gate with nothing pending, what
publishing a step costs, and the share of the sampled extras. Never a gate; what a step may do is
counted by `tests/train/test_cost.py`. With `--rivals --rounds 9` it takes some six minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tests.bench import bench_extras, bench_feed
from tests.bench.loops import LOOPS, Loop

BUDGETS = {
    ("tiny", False): 1.20,
    ("tiny", True): 1.20,
    ("mlp", False): 1.04,
    ("many", False): 1.06,
    ("gpt", False): 1.01,
    ("gpt", True): 1.005,
}
GATE_BUDGET_S = 3e-6
OWN_LIMIT_S = 10.0  # of steps whose own account is read
Variant = Callable[[Loop], contextlib.AbstractContextManager[Callable[[], None]]]


@contextlib.contextmanager
def watched(loop: Loop) -> Iterator[Callable[[], None]]:
    """tuimon with its defaults."""
    yield loop.step


@contextlib.contextmanager
def every_gradient_finite(loop: Loop) -> Iterator[Callable[[], None]]:
    """The loop people write by hand."""

    def step() -> None:
        loop.backward()
        for param in loop.model.parameters():
            if param.grad is not None and not torch.isfinite(param.grad).all():
                raise FloatingPointError
        loop.update()

    yield step


@contextlib.contextmanager
def detect_anomaly(loop: Loop) -> Iterator[Callable[[], None]]:
    """Torch's own debugging mode."""
    with torch.autograd.set_detect_anomaly(True):
        yield loop.step


@contextlib.contextmanager
def wandb_watch(loop: Loop) -> Iterator[Callable[[], None]]:
    """A histogram of every gradient at every step, the way `wandb.watch` makes them."""
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings={"silent": True})
    run.watch(loop.model, log="gradients", log_freq=1)

    def step() -> None:
        loop.step()
        run.log({})

    yield step
    run.unwatch(loop.model)
    run.finish()


@contextlib.contextmanager
def tensorboard_histograms(loop: Loop) -> Iterator[Callable[[], None]]:
    """A histogram of every gradient at every step into a TensorBoard file."""
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        names = list(loop.model.named_parameters())

        def step() -> None:
            loop.backward()
            for name, param in names:
                if param.grad is not None:
                    writer.add_histogram(name, param.grad)
            loop.update()

        yield step
        writer.close()


def rivals() -> dict[str, Variant]:
    """The other ways that can run here."""
    found: dict[str, Variant] = {
        "isfinite loop": every_gradient_finite,
        "detect_anomaly": detect_anomaly,
    }
    for name, variant, module in (
        ("wandb.watch", wandb_watch, "wandb"),
        ("tensorboard", tensorboard_histograms, "tensorboard"),
    ):
        with contextlib.suppress(ImportError):
            __import__(module)
            found[name] = variant
            break
    return found


def compare(loop: Loop, variant: Variant, rounds: int, block_s: float) -> tuple[float, list[float]]:
    """(bare seconds a step, ratio of each pair of blocks)."""
    import tuimon

    monitor = tuimon.watch(loop.model, loop.optimizer)
    bare, ratios = [], []
    count = _steps_for(loop.step, block_s)
    for _ in range(rounds):
        with monitor.detached():
            without = _block(loop.step, count)
        away = contextlib.nullcontext() if variant is watched else monitor.detached()
        with away, variant(loop) as step:
            ratios.append(_block(step, count) / without)
        bare.append(without)
    monitor.close()
    return statistics.median(bare), ratios


def own_share(loop: Loop, steps: int) -> float:
    """tuimon's self-time over step time, by its records; warm-up left out."""
    import tuimon
    from tuimon.feed import registry
    from tuimon.feed.codec import decode
    from tuimon.feed.ring import RingReader
    from tuimon.model.records import Step

    monitor = tuimon.watch(loop.model, loop.optimizer)
    began_s = time.perf_counter()
    for _ in range(10):
        loop.step()
    steps = min(steps, max(10, int(OWN_LIMIT_S / (time.perf_counter() - began_s) * 10)))
    reader = RingReader(registry.find_run(str(os.getpid())).ring(), at_end=True)
    records: list[Step] = []
    for _ in range(steps):
        loop.step()
        found = (decode(payload) for payload in reader.read())
        records += [each for each in found if isinstance(each, Step)]
    monitor.close()
    reader.close()
    cost = statistics.median(each.cost_s or 0.0 for each in records[1:])
    return cost / statistics.median(each.step_s or 1.0 for each in records[1:])


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


def _steps_for(step: Callable[[], None], block_s: float) -> int:
    for _ in range(5):
        step()
    began = time.perf_counter()
    for _ in range(5):
        step()
    return max(3, int(block_s / ((time.perf_counter() - began) / 5)))


def _block(step: Callable[[], None], count: int) -> float:
    """CPU seconds of the training thread for one step, which a busy neighbour disturbs least."""
    step()
    began = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - began) / count


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default="tiny,mlp,many,gpt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--block", type=float, default=0.3, help="seconds of each block")
    parser.add_argument("--rivals", action="store_true", help="compare with the usual ways too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=bench_feed.folder()) as home:
        os.environ.update(TUIMON_SCRIBE="0", TUIMON_DIR=home, XDG_STATE_HOME=str(Path(home) / "s"))
        print(f"{'loop':6} {'clips':5} {'bare ms':>8} {'variant':15} {'ratio':>7} quartiles")
        for name in options.loops.split(","):
            for clip in (False, True):
                _rows(name, clip, options)
        gate_s = idle_gate_s(LOOPS["tiny"](False))
        print(f"\ngate with nothing pending: {gate_s * 1e6:.2f} µs, budget {GATE_BUDGET_S * 1e6:g}")
        print("\npublishing a step")
        bench_feed.table()
        print("\nsampled extras")
        bench_extras.table(["mlp"], rounds=2 * options.rounds, block_s=options.block)


def _rows(name: str, clip: bool, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    variants: dict[str, Variant] = {"tuimon": watched}
    if options.rivals and not clip:
        variants |= rivals()
    for title, variant in variants.items():
        loop = LOOPS[name](clip)
        bare, ratios = compare(loop, variant, options.rounds, options.block)
        low, middle, high = statistics.quantiles(ratios, n=4)
        line = (
            f"{name:6} {clip!s:5} {bare * 1e3:8.3f} {title:15} {middle:7.3f} {low:.3f}–{high:.3f}"
        )
        if variant is watched:
            budget = BUDGETS.get((name, clip))
            line += f"  self {own_share(loop, 60):.1%}" + (f"  budget {budget}" if budget else "")
        print(line, flush=True)


if __name__ == "__main__":
    main()
