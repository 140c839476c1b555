"""What the viewer costs a terminal and a host, beside other programs of its kind on the same pty.

    python -m tests.bench.bench_screen [--seconds 8] [--rivals DIR]

Bytes a second, CPU and memory of the overview and the layers at 1, 4 and 10 Hz and with nothing
new, and of the same screens without the cell driver ("stock": what Textual writes by itself); start
to the first whole frame against a bare Textual program; and `tuimon attach` beside btop, nvitop and
`wandb leet`. The run makes 10 steps a second, of 170 layers. "×" is the multiple of what stands in
the first row of the table. DIR, then PATH, is searched for `btop`, `nvitop` and `wandb`; what does
not run is said, with the reason. Never a gate.
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.bench import monitors
from tests.bench.meter import PATIENCE_S, SIZE, Flow, flow_of
from tests.pty.terminal import Terminal
from tests.tui.fake import FakeRun, FakeSession
from tuimon.view.frame import Frame
from tuimon.view.heat import Heat
from tuimon.view.series import Series

STEPS_PER_S = 10.0
_FOLDERS = ("TUIMON_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
_HELLO = """
from textual.app import App
from textual.widgets import Static
class Hello(App):
    def compose(self):
        yield Static("hello")
Hello().run()
"""


class Growing(FakeSession):
    """A run of 2,000 steps that goes on, or that stands still, held as the viewer holds a run."""

    def __init__(self, steps_per_s: float) -> None:
        whole = FakeRun(steps=2000).frame()
        self._dice = np.random.default_rng(1)
        self._series = {name: Series(name) for name in ("loss", "grad_norm", "lr", "step_s")}
        assert whole.layers is not None
        self._heat = Heat(len(whole.layers.names))
        self._step = -1
        for _ in range(2000):
            self._take_step()
        super().__init__(replace(whole, series=dict(self._series), heat=self._heat))
        self.born_s, self.steps_per_s = time.monotonic(), steps_per_s

    def _take_step(self) -> None:
        self._step += 1
        noise = self._dice.normal(size=4)
        values = (2 + 7 * math.exp(-self._step / 600), 0.6, 3e-4, 0.1)
        for series, value, jitter in zip(self._series.values(), values, noise, strict=True):
            series.append(self._step, value * (1 + 0.05 * float(jitter)))
        norms = np.exp2(0.4 * self._dice.normal(size=self._heat.layers))
        self._heat.append(self._step, norms.astype(np.float32))

    def tick(self) -> Frame:
        """The newest frame; a new one where a step was made."""
        due = 1999 + int((time.monotonic() - self.born_s) * self.steps_per_s)
        while self._step < due:
            self._take_step()
        if self.current.step != self._step:
            self.current = replace(self.current, step=self._step)
        return self.current


def view(kind: str, hz: float) -> int:
    """The program that is measured."""
    from tuimon.tui import app, start

    if kind == "stock":
        app.ChangedCells = lambda update, memory: update  # type: ignore[assignment,misc]
    return start.watch(Growing(0.0 if kind == "idle" else STEPS_PER_S), hz=hz)


def first_frame(args: tuple[str, ...], words: str, compiled: str) -> tuple[float, float]:
    """(wall seconds, CPU seconds) from the start to a screen that shows the words.

    `compiled` holds the byte code of both programs, as their installation would.
    """
    with tempfile.TemporaryDirectory() as place:
        nobody: dict[str, str | None] = dict.fromkeys(_FOLDERS, place)
        warm = {"PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": None}
        start = time.monotonic()
        terminal = Terminal(*args, size=SIZE, environ=nobody | warm)
        try:
            terminal.until(words, patience_s=PATIENCE_S)
            return time.monotonic() - start, terminal.cpu_s()
        finally:
            terminal.close()


def _starts(rounds: int) -> None:
    ours = ("-m", "tuimon", "attach")  # with no run to find: the screen and a sentence
    table: dict[str, list[tuple[float, float]]] = {"hello": [], "tuimon": []}
    with tempfile.TemporaryDirectory() as compiled:
        for _ in range(1 + rounds):
            table["hello"].append(first_frame(("-c", _HELLO), "hello", compiled))
            table["tuimon"].append(first_frame(ours, "no run yet", compiled))
    for runs in table.values():
        del runs[0]  # it compiled
    print("\n| start to first frame | wall | CPU |\n|---|---|---|")
    for name, runs in table.items():
        wall, cpu = (statistics.median(each[at] for each in runs) for at in (0, 1))
        print(f"| {name} | {wall:.2f} s | {cpu:.2f} s |")
    ratio = [ours[0] / bare[0] for ours, bare in zip(table["tuimon"], table["hello"], strict=True)]
    print(f"\nratio of wall times in pairs: {statistics.median(ratio):.2f}", flush=True)


def _screens(seconds: float) -> None:
    print("| screen | kind | Hz | bytes/s | × | CPU | × | memory | × |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    first: Flow | None = None
    for screen in ("overview", "layers"):
        cases = [("live", 1.0), ("live", 4.0), ("live", 10.0), ("idle", 10.0)]
        for kind, hz in (*cases, ("stock", 4.0), ("stock", 10.0)):
            args = ("-m", "tests.bench.bench_screen", "--view", kind, "--hz", f"{hz:g}")
            terminal = Terminal(*args, size=SIZE)
            try:
                terminal.until("events", patience_s=PATIENCE_S)
                if screen == "layers":
                    terminal.send(b"3")
                    terminal.until("selected", patience_s=PATIENCE_S)
                flow = flow_of(terminal, seconds)
            finally:
                terminal.close()
            first = first or flow
            print(f"| {screen} | {kind} | {hz:g} | {flow.cells(first)} |", flush=True)


def main() -> int:
    """The tables, one after the other; `--only` chooses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--starts", type=int, default=9, help="pairs of them")
    parser.add_argument("--only", choices=["screens", "starts", "others"])
    parser.add_argument("--rivals", type=Path, help="folder of their commands")
    parser.add_argument("--view", choices=["live", "idle", "stock"], help=argparse.SUPPRESS)
    parser.add_argument("--hz", type=float, default=10.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        return view(options.view, options.hz)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if options.only in (None, "screens"):
        _screens(options.seconds)
    if options.only in (None, "starts"):
        _starts(options.starts)
    if options.only in (None, "others"):
        monitors.table(options.seconds, options.rivals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
