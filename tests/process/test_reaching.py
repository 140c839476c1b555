"""One real training, reached into from outside: breakpoints, looks, undo, waits, its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuimon.cli import status_of
from tuimon.feed import registry

SCRIPT = """
import atexit, sys, time, torch
torch.set_num_threads(1)
atexit.register(lambda: print('atexit ran', flush=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
try:
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.02)
finally:
    print('finally ran', flush=True)
"""
PATIENCE_S = 60.0


def eventually(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, "the condition never held"
        time.sleep(0.02)


@pytest.mark.timeout(180)
def test_a_training_is_reached_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, "-m", "tuimon", "run", "--max-hold", "120", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as training:
        token = str(training.pid)

        def ctl(*words: str) -> Any:
            capsys.readouterr()
            assert status_of(["ctl", token, *words, "--json"]) == 0, capsys.readouterr()
            return json.loads(capsys.readouterr().out)

        def listed() -> dict[str, Any]:
            capsys.readouterr()
            assert status_of(["ls", "--json", "--price-per-hour", "3600"]) == 0
            return next(r for r in json.loads(capsys.readouterr().out) if r["pid"] == training.pid)

        try:
            eventually(lambda: any(r.ranks[0].pid == training.pid for r in registry.list_runs()))
            at = ctl("lr", "scale", "0.5")["step"]
            undone = ctl("undo")
            assert (undone["old"], undone["new"]) == ("0.0005", "0.001")
            assert ctl("breakpoint") == []
            ctl("breakpoint", f"grad_norm >= 0 and step > {at + 5}")
            eventually(lambda: listed()["state"] == "paused")
            (point,) = ctl("breakpoint")
            assert (point["hits"], point["number"]) == (1, 1)
            looked = ctl("inspect", "0")
            whats = [(each["what"], each["name"]) for each in looked["reply"]["tensors"]]
            assert ("gradient", "0.weight") in whats and looked["state"] == "applied"
            assert looked["reply"]["tensors"][0]["shape"] == [4, 4]
            assert status_of(["ctl", token, "inspect", "0.bias"]) == 0
            shown = capsys.readouterr().out
            assert "parameter 0.bias" in shown and "finite   all" in shown
            waits = listed()
            assert waits["waits_s"] > 0 and waits["cost"] == pytest.approx(waits["waits_s"])
            assert status_of(["ls"]) == 0 and "paused " in capsys.readouterr().out
            assert status_of(["ctl", token, "breakpoint"]) == 0
            assert "1  grad_norm >= 0 and step > " in capsys.readouterr().out
            ctl("breakpoint", "--clear", "all")
            ctl("resume")
            assert listed()["waits_s"] is None
            assert ctl("stop")["state"] == "applied"
            out, err = training.communicate(timeout=PATIENCE_S)
            assert out.split("\n")[:2] == ["finally ran", "atexit ran"]
            assert training.returncode == 130 or "Stop" in err
        finally:
            training.kill()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["breakpoint", "loss >"], "the condition, column 7: expected a number"),
        (["breakpoint", "loss > 1", "--clear", "1"], "exclude each other"),
        (["breakpoint", "--clear", "some"], "a number or all"),
        (["breakpoint", "--clear", "0"], "count from 1"),
        (["inspect", ""], "name a layer"),
    ],
)
def test_what_makes_no_sense(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["ctl", "nope", *words]) == 2
    assert said in capsys.readouterr().err
