"""What looking at batches costs: tuimon's own share of step time with and without it.

Run it as a script. Prints a table; judges nothing. The share is what the step records say.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from tuimon.feed.codec import decode
from tuimon.feed.ring import RingReader
from tuimon.model.records import Step

WARM_UP = 60
Loop = Callable[[], None]


def classifier(
    width: int, rows: int, classes: int
) -> tuple[nn.Module, torch.optim.Optimizer, Loop]:
    """A net with labels, so that there is a target to look at."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch, labels = torch.randn(rows, width), torch.randint(0, classes, (rows,))

    def step() -> None:
        loss = functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, optimizer, step


LOOPS = {
    "tiny": lambda: classifier(64, 32, 10),
    "1 M parameters": lambda: classifier(1000, 128, 100),
}


class _Blind:
    """Stands for `Batches` and looks at nothing."""

    def __init__(self, real: object) -> None:
        self.passes = real.passes  # type: ignore[attr-defined]

    def wants(self, is_bad: bool) -> bool:
        return False

    def on_forward(self, *args: object) -> None: ...

    def on_bad_gradients(self) -> None: ...

    def flush(self) -> None: ...


def share(
    make: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Loop]], steps: int, *, looks: bool
) -> float:
    """Own time over step time of the steps after the first ones."""
    import tuimon
    from tuimon.train import monitor as monitors
    from tuimon.train.session import current_session

    torch.manual_seed(0)
    model, optimizer, step = make()
    monitor = tuimon.watch(model, optimizer)
    assert monitors._wiring is not None
    observer = monitors._wiring.observer
    if not looks:
        observer.batches = _Blind(observer.batches)  # type: ignore[assignment]
    for _ in range(WARM_UP + steps):
        step()
    session = current_session()
    assert session is not None and session.info is not None
    found = _steps(session.info.ring())[WARM_UP:]
    monitor.close()
    session.finish("ok")
    return sum(each.cost_s or 0.0 for each in found) / sum(each.step_s or 0.0 for each in found)


def _steps(path: Path) -> list[Step]:
    reader = RingReader(path)
    records = []
    while payloads := reader.read(10_000, 5.0):
        records += [decode(payload) for payload in payloads]
    reader.close()
    return [record for record in records if isinstance(record, Step)]


def main() -> None:
    """Print the table: medians of several runs, taken in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["TUIMON_SCRIBE"] = "0"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUIMON_DIR"] = os.environ["XDG_STATE_HOME"] = home
        print(f"{'model':18} {'without':>9} {'with':>9}   own time, share of a step")
        for name, make in LOOPS.items():
            pairs = [
                (share(make, options.steps, looks=False), share(make, options.steps, looks=True))
                for _ in range(options.rounds)
            ]
            without, looking = (
                sorted(column)[len(pairs) // 2] for column in zip(*pairs, strict=True)
            )
            print(f"{name:18} {without:9.2%} {looking:9.2%}")


if __name__ == "__main__":
    main()
