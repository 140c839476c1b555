"""Two ranks that are one run: a row each, a straggler, and one of them killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuimon.feed import registry
from tuimon.feed.history import read_history
from tuimon.feed.registry import RunInfo
from tuimon.model.ranks import RankRow
from tuimon.view.frame import Frame
from tuimon.view.session import watch_run

LIMIT_S = 200.0
pytestmark = pytest.mark.timeout(LIMIT_S * 2)

SCRIPT = """
import time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group('gloo')
rank = dist.get_rank()
class Uneven(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.02 * rank)
        return super().forward(x)
model = torch.nn.parallel.DistributedDataParallel(Uneven(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 2)).pow(2).mean().backward()
    optimizer.step()
"""


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """The first true answer of `condition`."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if answer := condition():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {LIMIT_S} s: {what}")


def start(folder: Path) -> list[subprocess.Popen[bytes]]:
    """Both ranks as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    words = [sys.executable, "-m", "tuimon", "run", "--report=r.json", "uneven.py"]
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, **address, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]


def rows_of(run: RunInfo) -> list[RankRow]:
    """What a late reader of the history sees."""
    history = read_history(run.history())
    return history.ranks.rows if history is not None and history.ranks is not None else []


def test_a_row_per_rank_and_the_one_that_was_killed_is_named(tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(SCRIPT)
    ranks = start(tmp_path)
    try:
        eventually(lambda: any(len(r.ranks) == 2 for r in registry.list_runs()), "two ranks")
        (run,) = registry.list_runs()

        def slow() -> bool:
            return [row.straggles for row in rows_of(run)] == [False, True]

        eventually(slow, "rank 1 holds up rank 0")
        assert [row.pid for row in rows_of(run)] == [each.pid for each in ranks]
        with contextlib.closing(watch_run(run)) as session:

            def shows(rank: int) -> Frame | None:
                frame = session.tick()
                told = frame.rank == rank and frame.step is not None and frame.ranks is not None
                return frame if told else None

            assert eventually(lambda: shows(0), "rank 0").pid == ranks[0].pid
            session.look_at(1)
            assert eventually(lambda: shows(1), "rank 1").pid == ranks[1].pid
        os.kill(ranks[1].pid, signal.SIGKILL)
        assert ranks[0].wait(LIMIT_S) == 1, "the other one ends by its own exception"
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    eventually((run.path / "report.done").exists, "the report")
    report = json.loads((tmp_path / "r.json").read_text())
    ends = [each["exit"]["kind"] for each in report["run"]["by_rank"]]
    assert ends == ["exception", "killed"] and report["outcome"] == "crashed"
    assert report["run"]["exit"]["kind"] == "killed"
    assert f"rank 1 (pid {ranks[1].pid})" in report["run"]["exit"]["detail"]
    assert [each["straggles"] for each in report["run"]["by_rank"]] == [False, True]
