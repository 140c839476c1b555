"""How long from a key to "applied", for steps of several lengths, on a real run and a real viewer.

    python tests/bench/bench_reach.py

The viewer draws 10 pictures a second. "told" is until its footer says so; "steps" is how many
updates were made between the key and the one that the command took effect at, that one included.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tuimon.feed import registry
from tuimon.tui.app import TuimonApp
from tuimon.tui.theme import Look
from tuimon.view.frame import LATE, LIVE
from tuimon.view.session import watch_run

STEP_S = (0.0, 0.01, 0.1)
PRESSES = 8
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


async def measured(token: str) -> list[tuple[float, float, int]]:
    """(seconds until applied, until the footer tells, steps) of each press."""
    found = []
    app = TuimonApp(watch_run(token, by="bench"), Look(), clock=time.monotonic)
    async with app.run_test(size=(120, 40)) as pilot:
        while app.bridge.frame.step is None or app.bridge.frame.state not in (LIVE, LATE):
            await pilot.pause(0.05)
        for press in range(PRESSES):
            before = len(app.bridge.frame.commands)
            step = app.bridge.frame.step
            began_s = time.time()
            app.action_do("lr_halve" if press % 2 else "lr_double")
            while "applied" not in app.bridge.notice[0] or len(app.scene.frame.commands) == before:
                await asyncio.sleep(0.001)
            told_s = time.time() - began_s
            state = app.bridge.frame.commands[-1]
            assert state.step is not None
            event = next(e for e in reversed(app.bridge.frame.events) if e.kind == "lr")
            found.append((event.time_s - began_s, told_s, state.step - (step or 0)))
            app.bridge.say("")
            await asyncio.sleep(0.05)
    return found


def main() -> None:
    """Print a row for each length of a step."""
    print(f"{'step':>8}  {'applied ms':>18}  {'told ms':>18}  {'steps':>12}")
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUIMON_DIR"] = os.environ["XDG_STATE_HOME"] = home
        script = Path(home) / "train.py"
        script.write_text(SCRIPT)
        for seconds in STEP_S:
            words = [sys.executable, "-m", "tuimon", "run", str(script), str(seconds)]
            with subprocess.Popen(words, stderr=subprocess.DEVNULL) as training:
                try:
                    until_s = time.monotonic() + PATIENCE_S
                    while not any(run.main_pid == training.pid for run in registry.list_runs()):
                        assert time.monotonic() < until_s, "no run appeared"
                        time.sleep(0.1)
                    rows = asyncio.run(measured(str(training.pid)))
                finally:
                    training.kill()
            applied, told, steps = zip(*rows, strict=True)
            print(
                f"{seconds * 1e3:>5.0f} ms  {_range(applied)}  {_range(told)}"
                f"  {statistics.median(steps):>4.0f} {min(steps)}…{max(steps)}"
            )


def _range(seconds: tuple[float, ...]) -> str:
    ms = [each * 1e3 for each in seconds]
    return f"{statistics.median(ms):>7.1f} ({min(ms):.1f}…{max(ms):.1f})"


if __name__ == "__main__":
    main()
