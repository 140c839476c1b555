"""How long from a key to "applied", on a terminal, with a real training and the real viewer.

    python -m tests.bench.bench_reach [--presses 12]

Each row is a training of steps of another length. "applied" is until the training has published
that the command took effect, "told" until the footer on the screen says so; "steps" is how many
updates had been made since the key when it took effect. Medians, then the smallest and the largest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.pty.terminal import Terminal
from tuimon.feed import registry
from tuimon.feed.codec import decode
from tuimon.feed.registry import RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model.records import CommandState

STEP_S = (0.0, 0.01, 0.1, 1.0)
PATIENCE_S = 60.0
SCRIPT = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
while True:
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    time.sleep(float(sys.argv[1]))
"""


def press(terminal: Terminal, ring: RingReader, key: bytes) -> tuple[float, float, int]:
    """(seconds until applied, until the footer tells, updates in between) of one key."""
    while ring.read(10_000, 1.0):
        pass
    words = "learning rate × 2 applied" if key == b">" else "learning rate × 0.5 applied"
    before = ring.status().step or 0
    applied: CommandState | None = None
    applied_s = 0.0
    began_s = time.perf_counter()
    terminal.send(key)
    while applied is None or words not in terminal.text:
        terminal.pump(0.001)
        for payload in ring.read(10_000, 0.1) if applied is None else ():
            record = decode(payload)
            if isinstance(record, CommandState) and record.state == "applied":
                applied, applied_s = record, time.perf_counter() - began_s
        assert time.perf_counter() - began_s < PATIENCE_S, terminal.text
    assert applied.step is not None
    return applied_s, time.perf_counter() - began_s, applied.step - before


def started(training: subprocess.Popen[bytes]) -> RunInfo:
    """The run of a training, once it has made updates."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        for run in registry.list_runs():
            if run.main_pid == training.pid and run.ring().exists():
                reader = RingReader(run.ring())
                if (reader.status().step or 0) > 1:
                    return run
        time.sleep(0.1)
    raise AssertionError("no run appeared")


def row(step_s: float, presses: int, script: Path) -> str:
    """One training, and what its keys took."""
    words = [sys.executable, "-m", "tuimon", "run", str(script), str(step_s)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as training:
        try:
            run = started(training)
            terminal = Terminal("-m", "tuimon", "attach", run.id)
            ring = RingReader(run.ring(), at_end=True)
            try:
                terminal.until("LIVE")
                keys = (b">" if number % 2 else b"<" for number in range(presses))
                rows = [press(terminal, ring, key) for key in keys]
            finally:
                terminal.close()
                ring.close()
        finally:
            training.kill()
    applied, told, steps = zip(*rows, strict=True)
    return (
        f"{step_s * 1e3:>6.0f} ms  {_range(applied)}  {_range(told)}"
        f"  {statistics.median(steps):>4.0f} {min(steps)}…{max(steps)}"
    )


def _range(seconds: tuple[float, ...]) -> str:
    ms = [each * 1e3 for each in seconds]
    return f"{statistics.median(ms):>7.1f} ({min(ms):.1f}…{max(ms):.1f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presses", type=int, default=12)
    options = parser.parse_args()
    print("   sleep  applied, ms            told, ms               steps")
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"TUIMON_DIR": f"{home}/runs", "XDG_STATE_HOME": f"{home}/state"}
        os.environ["OMP_NUM_THREADS"] = "1"
        script = Path(home) / "endless.py"
        script.write_text(SCRIPT)
        for step_s in STEP_S:
            print(row(step_s, options.presses, script), flush=True)


if __name__ == "__main__":
    main()
