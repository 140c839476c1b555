"""`tuimon run --fail-on` and `tuimon explain`: what scripts and CI rely on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.process.bare import tuimon_run
from tuimon.cli import status_of
from tuimon.errors import EXIT_FINDINGS, EXIT_USAGE
from tuimon.feed import registry
from tuimon.feed.history import read_history
from tuimon.model.causes import CAUSES

TRAINS = """
import atexit, sys, threading, time
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
kept = open('kept.txt', 'w')
kept.write('whole')
atexit.register(lambda: print('bye'))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    x = torch.randn(8, 4)
    if step == 3 and 'bad' in sys.argv:
        x[2, 1] = float('nan')
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()
if 'interrupted' in sys.argv:
    raise KeyboardInterrupt
sys.exit(3 if 'three' in sys.argv else 0)
"""


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("bad",), EXIT_FINDINGS),
        ((), 0),
        (("bad", "three"), 3),
        (("bad", "interrupted"), -signal.SIGINT),
    ],
)
def test_a_severe_finding_is_an_exit_status(
    tmp_path: Path, words: tuple[str, ...], status: int
) -> None:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    ran = tuimon_run(tmp_path, "--fail-on", "critical", str(script), *words, scribe=True)
    assert ran.status == status, ran.stderr
    assert ran.stdout.split() == ["thread", "bye"]
    assert (tmp_path / "kept.txt").read_text() == "whole"
    assert ("tuimon: cause: " in ran.stderr) is ("bad" in words)
    told = "data-nonfinite at step 3; exit status 6" in ran.stderr
    assert told is (status == EXIT_FINDINGS)
    history = read_history(registry.find_run(None).path / "history.bin")
    assert history is not None
    assert [found.cause for found in history.findings] == ["data-nonfinite"] * ("bad" in words)


def test_every_cause_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["explain"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == set(CAUSES)
    assert status_of(["explain", "where-trap"]) == 0
    assert "torch.where" in capsys.readouterr().out
    assert status_of(["explain", "no-such"]) == EXIT_USAGE
    assert capsys.readouterr().err.count("\n") == 1
