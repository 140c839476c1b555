"""From a script that goes wrong to its report, its last lines, and a training that is held."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.train.conftest import wait_for
from tuimon.errors import NoSuchRun
from tuimon.feed import registry
from tuimon.feed.registry import RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model.records import HELD

SCRIPT = """
import sys
import torch
from torch import nn


def loss_of(p):
    return -p.log().mean()  # the guilty line


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    p = model(torch.randn(8, 4))
    if step == 5:
        p = p * 0
    loss = loss_of(p)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}")
    if not torch.isfinite(loss) and len(sys.argv) > 1:
        raise ValueError("the loss is not finite")
"""
GUILTY = 1 + SCRIPT.splitlines().index("    return -p.log().mean()  # the guilty line")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    return {
        **os.environ,
        "TUIMON_DIR": str(tmp_path / "runs"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "OMP_NUM_THREADS": "1",
    }


def run(environ: dict[str, str], folder: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "tuimon", "run", *words]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=110
    )


def test_report_and_last_lines(environ: dict[str, str], tmp_path: Path) -> None:
    done = run(environ, tmp_path, "--report", "r.json", "train.py", "raise")
    assert done.returncode == 1 and done.stdout.split()[-1] == "5"
    report = json.loads((tmp_path / "r.json").read_text())
    found = report["autopsies"][0]
    assert (found["step"], found["trigger"], found["verdict"]) == (
        5,
        "non-finite-loss",
        "operation",
    )
    first = found["first"]
    assert (first["op"], first["phase"], first["line"]) == ("aten::log", "forward", GUILTY)
    assert Path(first["file"]).name == "train.py" and "p.log()" in first["source"]
    assert "G" in found["engine"] and found["duration_s"] > 0
    ours = [line for line in done.stderr.splitlines() if line.startswith("tuimon:")]
    verdict = [line for line in ours if "aten::log gave" in line]
    assert len(verdict) == 1 and f"train.py:{GUILTY}" in verdict[0] and "step 5" in verdict[0]
    cause = next(line for line in ours if line.startswith("tuimon: cause: "))
    assert report["findings"][0]["cause"] in cause
    assert any(line.startswith("tuimon: remedy: ") for line in ours)
    assert len(ours) <= 6


def start(environ: dict[str, str], folder: Path, *words: str) -> subprocess.Popen[str]:
    """A training that will be held."""
    command = [sys.executable, "-m", "tuimon", "run", "--on-non-finite", "hold", *words, "train.py"]
    return subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run_of(process: subprocess.Popen[str]) -> RunInfo:
    return next(run for run in registry.list_runs() if run.ranks[0].pid == process.pid)


def is_held(process: subprocess.Popen[str]) -> bool:
    """Whether its ring says so."""
    assert process.poll() is None
    try:
        with contextlib.closing(RingReader(run_of(process).ring())) as reader:
            return reader.status().state == HELD
    except (StopIteration, NoSuchRun):  # it has only begun
        return False


def picture(process: subprocess.Popen[str]) -> str:
    """What a terminal shows of a run."""
    words = [sys.executable, "-m", "tuimon", "attach", run_of(process).id, "--once"]
    return subprocess.run(words, capture_output=True, text=True, timeout=110).stdout


def test_a_held_training_ends_as_it_would_without_us(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """By a signal with the status of that signal, by itself after its limit; the viewer tells."""
    quiet = {**environ, "TUIMON_SCRIBE": "0"}
    long = ("--max-hold", "3000")  # none of these ends by itself while others are waited for
    limited = start(quiet, tmp_path, "--max-hold", "0.2")
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    processes = {number: start(quiet, tmp_path, *long) for number in numbers}
    try:
        for process in processes.values():
            wait_for(lambda process=process: is_held(process), 90.0)
        assert "HELD" in picture(processes[signal.SIGKILL]).upper()
        for number, process in processes.items():
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            assert process.returncode == -number, err
            assert out.split()[-1] == "4", "the update before which it was held was not made"
            assert ("KeyboardInterrupt" in err) is (number == signal.SIGINT)
        assert "was killed" in picture(processes[signal.SIGKILL])
        out, err = limited.communicate(timeout=90)
        assert (limited.returncode, out.split()[-1]) == (0, "7"), err
    finally:
        for process in (limited, *processes.values()):
            process.kill()
            process.communicate()
