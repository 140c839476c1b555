"""What watching costs: step time watched over step time bare, interleaved in one process.

Run it as a script. Prints a table; judges nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn

Step = Callable[[], None]


def tiny(clip: bool) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    """A net whose step takes some 300 µs."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return _loop(model, torch.randn(32, 64), clip)


def mlp(clip: bool) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    """2.9 M parameters in 8 tensors."""
    layers: list[nn.Module] = []
    for wide, narrow in ((784, 1024), (1024, 1024), (1024, 1024)):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return _loop(nn.Sequential(*layers, nn.Linear(1024, 10)), torch.randn(128, 784), clip)


def many(clip: bool) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    """1,000 small tensors."""
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(500)))
    return _loop(model, torch.randn(8, 32), clip)


def _loop(
    model: nn.Module, batch: torch.Tensor, clip: bool
) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return model, optimizer, step


def measure(
    make: Callable[[bool], tuple[nn.Module, torch.optim.Optimizer, Step]],
    clip: bool,
    rounds: int,
    seconds: float,
) -> tuple[float, float, float, float]:
    """(bare ms, median ratio, lower and upper quartile of the ratio) over paired blocks."""
    import tuimon

    torch.manual_seed(0)
    model, optimizer, step = make(clip)
    monitor = tuimon.watch(model, optimizer)
    for _ in range(60):
        step()
    began = time.perf_counter()
    for _ in range(20):
        step()
    count = max(3, int(seconds / ((time.perf_counter() - began) / 20)))
    bare, ratios = [], []
    for _ in range(rounds):
        with monitor.detached():
            without = _block(step, count)
        watched = _block(step, count)
        bare.append(without)
        ratios.append(watched / without)
    monitor.close()
    low, middle, high = statistics.quantiles(ratios, n=4)
    return statistics.median(bare) * 1e3, middle, low, high


def _block(step: Step, count: int) -> float:
    """CPU seconds of the training thread for one step, which a busy neighbour disturbs least."""
    step()
    began = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - began) / count


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each block")
    options = parser.parse_args()
    os.environ["TUIMON_SCRIBE"] = "0"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUIMON_DIR"] = home
        os.environ["XDG_STATE_HOME"] = home
        print(f"{'model':12} {'clips':6} {'bare ms':>9} {'ratio':>7} {'quartiles':>16}")
        for make in (tiny, mlp, many):
            for clip in (False, True):
                bare, middle, low, high = measure(make, clip, options.rounds, options.seconds)
                print(
                    f"{make.__name__:12} {clip!s:6} {bare:9.3f} {middle:7.3f}"
                    f" {low:7.3f} … {high:.3f}"
                )


if __name__ == "__main__":
    main()
