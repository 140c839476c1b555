"""Other programs that people keep open beside a training, on the same pty and by the same meter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.bench.meter import PATIENCE_S, Flow, flow_of, has_ended, program
from tests.pty.terminal import Terminal

LIVE, ENDED = "a run of 10 steps/s", "a run that has ended"
LAYERS = 170
ENDED_STEPS = 100

_LOGGING = """
import math, sys, time, wandb
run = wandb.init(mode="offline", project="bench")
pause_s, steps = float(sys.argv[1]), int(sys.argv[2])
for step in range(steps):
    run.log({"loss": 2 + math.exp(-step / 300), "grad_norm": 1 + math.sin(step), "lr": 1e-3})
    time.sleep(pause_s)
run.finish()
"""


class Monitor(NamedTuple):
    """A program, and what it is given to watch."""

    name: str
    shows: str
    words: tuple[str, ...]
    drawn: str  # what its first whole picture holds


class Measured(NamedTuple):
    """Seconds from the start to the first whole picture, and how the program ran then."""

    first_s: float
    flow: Flow


class DidNotRun(Exception):
    """Why a program could not be measured."""


OTHERS = (
    Monitor("btop", "this host, every 2 s", ("--utf-force",), "cpu"),
    Monitor("nvitop", "the devices of this host", ("-m", "full"), "NVITOP"),
    Monitor("wandb", LIVE, ("leet",), "Summary"),
    Monitor("wandb", ENDED, ("leet",), "Summary"),
)


def table(seconds: float, folder: Path | None) -> None:
    """A row for each; "×" is the multiple of what stands in the first one."""
    print("\n| program | shows | first picture | × | bytes/s | × | CPU | × | memory | × |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    first = _ours(LIVE, seconds)
    _print(Monitor("tuimon", LIVE, (), ""), first, first)
    _print(Monitor("tuimon", ENDED, (), ""), _ours(ENDED, seconds), first)
    path = os.pathsep.join([*([str(folder)] if folder else []), os.environ.get("PATH", "")])
    for monitor in OTHERS:
        try:
            _print(monitor, _other(monitor, shutil.which(monitor.name, path=path), seconds), first)
        except DidNotRun as why:
            print(f"| {monitor.name} | {monitor.shows} | did not run: {why} |" + " |" * 7)
        sys.stdout.flush()


def _print(monitor: Monitor, found: Measured, first: Measured) -> None:
    start = f"{found.first_s:.2f} s | {found.first_s / first.first_s:.2f}"
    print(f"| {monitor.name} | {monitor.shows} | {start} | {found.flow.cells(first.flow)} |")


def _ours(shows: str, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory() as place:
        own = {"TUIMON_DIR": place, "XDG_STATE_HOME": place, "XDG_CONFIG_HOME": place}
        words = [sys.executable, "-m", "tests.bench.plain_run"]
        made = ["10", str(LAYERS)] if shows == LIVE else ["1000", str(LAYERS), str(ENDED_STEPS)]
        with subprocess.Popen(
            [*words, *made], stdout=subprocess.PIPE, text=True, env={**os.environ, **own}
        ) as run:
            try:
                assert run.stdout is not None
                name = run.stdout.readline().strip()
                if shows == ENDED:
                    run.wait(PATIENCE_S)
                attach = ("-m", "tuimon", "attach", name)
                return measured(lambda: Terminal(*attach, environ=own), "grad norm", seconds)
            finally:
                run.kill()


def _other(monitor: Monitor, found: str | None, seconds: float) -> Measured:
    if found is None:
        raise DidNotRun("not installed")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place,
        _fed(monitor, found, place),
    ):
        return measured(lambda: program(found, monitor.words, place), monitor.drawn, seconds)


def measured(opened: Callable[[], Terminal], drawn: str, seconds: float) -> Measured:
    """Open it, wait for its picture, and meter it.

    Raises:
        DidNotRun: it ended by itself, or never showed that.
    """
    begun_s = time.monotonic()
    terminal = opened()
    try:
        terminal.until(lambda shown: drawn in shown or has_ended(terminal), patience_s=PATIENCE_S)
        return Measured(time.monotonic() - begun_s, flow_of(terminal, seconds))
    except (AssertionError, psutil.Error):
        said = " ".join(terminal.text.split())
        raise DidNotRun(said.split(". ")[0][:90] or "it drew nothing") from None
    finally:
        terminal.close()


@contextmanager
def _fed(monitor: Monitor, found: str, place: str) -> Iterator[None]:
    """For wandb a run that logs as often as ours makes steps, or has done so."""
    if monitor.name != "wandb":
        yield
        return
    python = str(Path(found).resolve().parent / "python")
    pause_s, steps = ("0.1", "100000") if monitor.shows == LIVE else ("0", str(ENDED_STEPS))
    feeder = subprocess.Popen(
        [python, "-c", _LOGGING, pause_s, steps],
        cwd=place,
        env={**os.environ, "HOME": place},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        if monitor.shows == ENDED:
            feeder.wait(PATIENCE_S)
        _wait_for_records(Path(place))
        yield
    finally:
        feeder.kill()
        feeder.wait()


def _wait_for_records(place: Path) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if any(file.stat().st_size for file in place.glob("wandb/*/*.wandb")):
            return
        time.sleep(0.2)
    raise DidNotRun("its run wrote nothing")
