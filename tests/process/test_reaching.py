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


class Outside:
    """The command line, used on a training from this process."""

    def __init__(self, token: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.token = token
        self.capsys = capsys

    def said(self, *words: str) -> str:
        self.capsys.readouterr()
        assert status_of(list(words)) == 0, self.capsys.readouterr()
        return self.capsys.readouterr().out

    def ctl(self, *words: str) -> Any:
        return json.loads(self.said("ctl", self.token, *words, "--json"))

    def listed(self) -> dict[str, Any]:
        rows = json.loads(self.said("ls", "--json", "--price-per-hour", "3600"))
        return next(row for row in rows if str(row["pid"]) == self.token)


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
        run = Outside(str(training.pid), capsys)
        try:
            eventually(lambda: any(r.ranks[0].pid == training.pid for r in registry.list_runs()))
            at = run.ctl("lr", "scale", "0.5")["step"]
            undone = run.ctl("undo")
            assert (undone["old"], undone["new"]) == ("0.0005", "0.001")
            assert run.ctl("breakpoint") == run.ctl("breakpoint", "list") == []
            run.ctl("breakpoint", f"grad_norm >= 0 and step > {at + 5}")
            eventually(lambda: run.listed()["state"] == "paused")
            look_around(run)
            assert run.ctl("breakpoint", "clear", "all")["new"] == "cleared"
            run.ctl("resume")
            assert run.listed()["waits_s"] is None
            assert run.ctl("stop")["state"] == "applied"
            out, _ = training.communicate(timeout=PATIENCE_S)
            assert out.split("\n")[:2] == ["finally ran", "atexit ran"]
        finally:
            training.kill()


def look_around(run: Outside) -> None:
    """What can be seen of a training that a breakpoint holds."""
    (point,) = run.ctl("breakpoint")
    assert (point["hits"], point["number"]) == (1, 1)
    assert "1  grad_norm >= 0 and step > " in run.said("ctl", run.token, "breakpoint")
    looked = run.ctl("inspect", "0")
    whats = [(each["what"], each["name"]) for each in looked["reply"]["tensors"]]
    assert ("gradient", "0.weight") in whats and looked["state"] == "applied"
    assert looked["reply"]["tensors"][0]["shape"] == [4, 4]
    shown = run.said("ctl", run.token, "inspect", "0.bias")
    assert "parameter 0.bias" in shown and "finite   all" in shown
    waits = run.listed()
    assert waits["waits_s"] > 0 and waits["cost"] == pytest.approx(waits["waits_s"])
    assert "paused " in run.said("ls")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["breakpoint", "loss >"], "the condition, column 7: expected a number"),
        (["breakpoint", "loss > 1", "--clear", "1"], "exclude each other"),
        (["breakpoint", "--clear", "some"], "the number of a breakpoint, or all"),
        (["breakpoint", "--clear", "0"], "count from 1"),
        (["breakpoint", "clear"], "clear takes the number of a breakpoint, or all"),
        (["breakpoint", "clear", "some"], "clear takes the number of a breakpoint, or all"),
        (["breakpoint", "clear", "0"], "count from 1"),
        (["breakpoint", "clear", "1", "--clear", "1"], "exclude each other"),
        (["breakpoint", "list", "1"], "list takes nothing more"),
        (["inspect", ""], "name a layer"),
    ],
)
def test_what_makes_no_sense(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["ctl", "nope", *words]) == 2
    assert said in capsys.readouterr().err
