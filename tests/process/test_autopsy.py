"""From a script that goes wrong to its report, its last lines, and a training that is held."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.train.conftest import wait_for

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


def test_a_held_training_is_shown_as_held_and_can_be_ended(
    environ: dict[str, str], tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "tuimon", "run", "--on-non-finite", "hold", "train.py"]
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        states: list[str] = []

        def is_held() -> bool:
            listed = subprocess.run(
                [sys.executable, "-m", "tuimon", "ls", "--json"],
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
            )
            states[:] = [each["state"] for each in json.loads(listed.stdout or "[]")]
            return states == ["held"]

        wait_for(is_held, 90.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (-signal.SIGINT, 130)
    finally:
        process.kill()
        process.wait()
