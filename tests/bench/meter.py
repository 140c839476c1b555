"""What a program on a pty writes, computes and holds, with everything that it has started."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import psutil

from tests.pty.terminal import Terminal

SIZE = (120, 40)
SETTLE_S = 3.0
PATIENCE_S = 120.0  # a host may have much else to do


class Flow(NamedTuple):
    """How a program ran for a while."""

    bytes_per_s: float
    cpu_frac: float
    rss_bytes: int

    def cells(self, ours: Flow | None = None) -> str:
        """The cells of a table; with `ours` each beside its multiple of that."""
        found = (
            f"{self.bytes_per_s:,.0f}",
            f"{self.cpu_frac:.1%}",
            f"{self.rss_bytes / 1e6:.0f} MB",
        )
        if ours is None:
            return " | ".join(found)
        ratios = (each / base if base else 0.0 for each, base in zip(self, ours, strict=True))
        return " | ".join(
            f"{cell} | {ratio:.2f}" for cell, ratio in zip(found, ratios, strict=True)
        )


def use_of(pid: int) -> tuple[float, int]:
    """(CPU seconds, resident bytes) of a process and those below it.

    Raises:
        psutil.Error: it has ended.
    """
    cpu_s, rss_bytes = 0.0, 0
    root = psutil.Process(pid)
    if root.status() == psutil.STATUS_ZOMBIE:
        raise psutil.ZombieProcess(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system
            rss_bytes += process.memory_info().rss
        except psutil.Error:
            continue
    return cpu_s, rss_bytes


def flow_of(terminal: Terminal, seconds: float, *, settle_s: float = SETTLE_S) -> Flow:
    """How it runs for so many seconds, after it has settled.

    Raises:
        psutil.Error: it has ended.
    """
    pump(terminal, settle_s)
    before_s, _ = use_of(terminal.pid)
    taken, begun_s = len(terminal.raw), time.monotonic()
    pump(terminal, seconds)
    wall_s = time.monotonic() - begun_s
    after_s, rss_bytes = use_of(terminal.pid)
    written = len(terminal.raw) - taken
    return Flow(written / wall_s, (after_s - before_s) / wall_s, rss_bytes)


def has_ended(terminal: Terminal) -> bool:
    """Whether the program is over, and has not been waited for yet."""
    return psutil.Process(terminal.pid).status() == psutil.STATUS_ZOMBIE


def pump(terminal: Terminal, seconds: float) -> None:
    """Take in what is written all of that time, also while nothing comes."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        terminal.pump(min(left_s, 0.2))


def program(found: str, words: tuple[str, ...], folder: str) -> Terminal:
    """Any program, in a folder that is its home too, so that no one's settings take part."""
    code = f"import os; os.chdir({folder!r}); os.execv({found!r}, {[found, *words]!r})"
    home = {"HOME": folder, "XDG_CONFIG_HOME": None, "COLORTERM": "truecolor"}
    return Terminal("-c", code, size=SIZE, environ={**home, "PATH": os.environ.get("PATH", "")})
