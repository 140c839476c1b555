"""What the viewer costs a terminal and a host, beside other programs of its kind on the same pty.

    python -m tests.bench.bench_screen [--seconds 8] [--rivals DIR]

Bytes a second and CPU of the overview and the layers at 1, 4 and 10 Hz and with nothing new, the
same screens without the cell driver ("stock": what Textual writes by itself), start to the first
whole frame against a bare Textual program, and memory. The run makes 10 steps a second, of 170
layers. DIR is searched for `nvitop` and `wandb`, PATH for them and `btop`; what is not there is
said. Never a gate.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from tests.pty.terminal import Terminal
from tests.tui.fake import FakeRun, FakeSession
from tuimon.view.frame import Frame
from tuimon.view.heat import Heat
from tuimon.view.series import Series

SIZE = (120, 40)
STEPS_PER_S = 10.0
SETTLE_S = 3.0
STARTS = 9
_FOLDERS = ("TUIMON_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
_HELLO = """
from textual.app import App
from textual.widgets import Static
class Hello(App):
    def compose(self):
        yield Static("hello")
Hello().run()
"""
_LOGGING = """
import math, time, wandb
run = wandb.init(mode="offline", project="bench")
for step in range(100_000):
    run.log({"loss": 2 + math.exp(-step / 300), "grad_norm": 1 + math.sin(step), "lr": 1e-3})
    time.sleep(0.1)
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


def whole_use(pid: int) -> tuple[float, int]:
    """(CPU seconds, resident bytes) of a process and those below it."""
    cpu_s, rss = 0.0, 0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system
            rss += process.memory_info().rss
        except psutil.Error:
            continue
    return cpu_s, rss


def flow(terminal: Terminal, seconds: float) -> tuple[float, float, float]:
    """(bytes a second, CPU in %, resident MB) of a program that runs."""
    _pump(terminal, SETTLE_S)
    before_s, _ = whole_use(terminal.pid)
    taken, start = len(terminal.raw), time.monotonic()
    _pump(terminal, seconds)
    wall_s = time.monotonic() - start
    after_s, rss = whole_use(terminal.pid)
    rate = (len(terminal.raw) - taken) / wall_s
    return rate, 100 * (after_s - before_s) / wall_s, rss / 1e6


def _pump(terminal: Terminal, seconds: float) -> None:
    """All of the time, also while nothing comes."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        terminal.pump(min(left, 0.2))


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
            terminal.until(words)
            return time.monotonic() - start, terminal.cpu_s()
        finally:
            terminal.close()


def _starts() -> None:
    ours = ("-m", "tuimon", "attach")  # with no run to find: the screen and a sentence
    table: dict[str, list[tuple[float, float]]] = {"hello": [], "tuimon": []}
    with tempfile.TemporaryDirectory() as compiled:
        for _ in range(1 + STARTS):
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
    print("| screen | kind | Hz | bytes/s | CPU | memory |\n|---|---|---|---|---|---|")
    for screen in ("overview", "layers"):
        cases = [("live", 1.0), ("live", 4.0), ("live", 10.0), ("idle", 10.0)]
        for kind, hz in (*cases, ("stock", 4.0), ("stock", 10.0)):
            args = ("-m", "tests.bench.bench_screen", "--view", kind, "--hz", f"{hz:g}")
            terminal = Terminal(*args, size=SIZE)
            try:
                terminal.until("events")
                if screen == "layers":
                    terminal.send(b"3")
                    terminal.until("selected")
                rate, cpu, rss = flow(terminal, seconds)
            finally:
                terminal.close()
            print(f"| {screen} | {kind} | {hz:g} | {rate:,.0f} | {cpu:.1f} % | {rss:.0f} MB |")
            sys.stdout.flush()


def _others(seconds: float, folder: Path | None) -> None:
    path = os.pathsep.join([*([str(folder)] if folder else []), os.environ.get("PATH", "")])
    commands = {"btop": ("--utf-force",), "nvitop": ("-m", "full"), "wandb": ("leet",)}
    print("\n| other program | bytes/s | CPU | memory |\n|---|---|---|---|")
    for name, words in commands.items():
        found = shutil.which(name, path=path)
        if found is None:
            print(f"| {name} | not installed | | |")
            continue
        with tempfile.TemporaryDirectory() as place, fed(name, found, place):
            code = f"import os; os.chdir({place!r}); os.execv({found!r}, {[found, *words]!r})"
            terminal = Terminal("-c", code, size=SIZE, environ={"COLORTERM": "truecolor"})
            try:
                rate, cpu, rss = flow(terminal, seconds)
                if rss == 0:
                    raise psutil.ZombieProcess(terminal.pid)
            except psutil.Error:
                said = " ".join(terminal.text.split())[:90]
                print(f"| {name} | ended by itself: {said} | | |", flush=True)
                continue
            finally:
                terminal.close()
        drawn = len(terminal.text.split())
        print(f"| {name} ({drawn} words) | {rate:,.0f} | {cpu:.1f} % | {rss:.0f} MB |", flush=True)


@contextmanager
def fed(name: str, found: str, place: str) -> Iterator[None]:
    """For wandb a run that logs as often as ours makes steps; nothing for the others."""
    if name != "wandb":
        yield
        return
    python = str(Path(found).parent / "python")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    feeder = subprocess.Popen([python, "-c", _LOGGING], cwd=place, **quiet)
    try:
        end = time.monotonic() + 30
        while not list(Path(place).glob("wandb/*/*.wandb")) and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(3)  # its first lines
        yield
    finally:
        feeder.kill()
        feeder.wait()


def main() -> int:
    """The tables, one after the other; `--only` chooses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0)
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
        _starts()
    if options.only in (None, "others"):
        _others(options.seconds, options.rivals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
