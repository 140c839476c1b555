"""The whole viewer against the length of the history and the number of layers: memory, CPU, bytes.

    python -m tests.bench.bench_growth [--steps 1000 1000000] [--layers 30 300 10000]

Each cell is a viewer of its own on a pty. It knows a run of so many steps whose sampled values are
as many as are kept, has shown eight of its screens, and then draws the overview at 10 Hz while 10
steps a second are made. The last RECORDS steps come as records, by which all tiers of the heat map
are full and folded, those before as series; `--records` makes them more. "×" is the multiple of the
first cell, the budget that of 10⁶ steps of 300 parameters. Never a gate.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.bench.bench_view import Watched
from tests.bench.meter import PATIENCE_S, SIZE, Flow, flow_of, pump
from tests.pty.terminal import Terminal
from tests.tui.fake import FakeSession
from tuimon.model.samples import ParameterSample, ParameterSamples
from tuimon.view.frame import Frame

STEPS, LAYERS, RECORDS = (10**3, 10**4, 10**5, 10**6), (30, 300, 10_000), 10_000
STEPS_PER_S = 10.0
BUDGET_STEPS, BUDGET_LAYERS, BUDGET_BYTES = 10**6, 300, 300_000_000
SAMPLES = 40_000  # as many as a viewer keeps
SAMPLED_AT_ONCE = 50
SCREENS = b"2345678901"  # the overview last


class Grown(FakeSession):
    """A run of so many steps that goes on."""

    def __init__(self, steps: int, layers: int, records: int) -> None:
        by_record = min(steps, records)
        self._run = Watched(steps - by_record, layers, records=by_record)
        self._sample(layers)
        super().__init__(self._run.frame())
        self._due_s = time.monotonic()

    def _sample(self, layers: int) -> None:
        names = self._run.names
        for start in range(0, SAMPLES, SAMPLED_AT_ONCE):
            items = [
                ParameterSample(names[at % layers], 1.0, 1.0, 1.0, 1e-3, 4096, 1.0)
                for at in range(start, start + SAMPLED_AT_ONCE)
            ]
            self._run.state.apply(ParameterSamples(start // layers, 0, items))

    def tick(self) -> Frame:
        """The newest frame; a new one where a step was made."""
        while self._due_s <= time.monotonic():
            self._due_s += 1 / STEPS_PER_S
            self._run.train()
            self.current = self._run.frame()
        return self.current


def cell(steps: int, layers: int, *, records: int, seconds: float) -> Flow:
    """How one viewer runs."""
    words = ("--view", str(steps), str(layers), "--records", str(records))
    terminal = Terminal("-m", "tests.bench.bench_growth", *words, size=SIZE)
    try:
        terminal.until("grad norm", patience_s=PATIENCE_S + records / 1000)
        for key in SCREENS:
            terminal.send(bytes([key]))
            pump(terminal, 0.5)
        return flow_of(terminal, seconds)
    finally:
        terminal.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--records", type=int, default=RECORDS, help="of each run, at its end")
    parser.add_argument("--seconds", type=float, default=5.0, help="that each is metered")
    parser.add_argument("--view", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        from tuimon.tui import start

        sys.exit(start.watch(Grown(*options.view, options.records)))
    print("| steps | layers | bytes/s | × | CPU | × | memory | × | budget |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    first: Flow | None = None
    for layers in options.layers:
        for steps in options.steps:
            flow = cell(steps, layers, records=options.records, seconds=options.seconds)
            first = first or flow
            is_budgeted = (steps, layers) == (BUDGET_STEPS, BUDGET_LAYERS)
            budget = f"{flow.rss_bytes / BUDGET_BYTES:.2f} of it" if is_budgeted else ""
            print(f"| {steps:,} | {layers:,} | {flow.cells(first)} | {budget} |", flush=True)


if __name__ == "__main__":
    main()
