"""Several live runs and none named: a list on a terminal, one line without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.process.stand_in import StandIn
from tests.pty.terminal import Terminal

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def two() -> Iterator[list[StandIn]]:
    runs = [StandIn(), StandIn()]
    runs[0].order("steps 12")
    runs[1].order("steps 34")
    yield runs
    for run in runs:
        run.end()


def test_a_person_picks_one(two: list[StandIn]) -> None:
    terminal = Terminal("-m", "tuimon", "attach")
    try:
        shown = terminal.until("2 live")
        assert all(run.run_id in shown for run in two)
        assert shown.index(two[1].run_id) < shown.index(two[0].run_id), "the newest is not first"
        terminal.send(b"j\r")
        assert f":{two[0].process.pid}" in terminal.until("a.weight")
        terminal.send(b"q")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_without_a_terminal_it_says_which(two: list[StandIn]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuimon", "attach", "--once"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and f":{two[1].process.pid}" in done.stdout
    assert done.stderr.count("\n") == 1 and two[1].run_id in done.stderr
    assert "newest of 2 live runs" in done.stderr
