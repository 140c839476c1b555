"""Commands that open the viewer on a real terminal: what happens to the training when it closes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pty.terminal import Terminal
from tuimon.feed import registry
from tuimon.feed.registry import RunInfo

pytestmark = pytest.mark.timeout(180)

ENDLESS = """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
print('a line of the script')
while True:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""


def eventually(condition: Callable[[], bool], limit_s: float = 60.0) -> bool:
    """Whether it became true in time."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def newest_run() -> Iterator[Callable[[], RunInfo]]:
    """The newest run; its training is ended after the test."""
    yield lambda: registry.list_runs()[-1]
    for info in registry.list_runs():
        if registry.is_alive(info):
            os.kill(info.ranks[0].pid, signal.SIGKILL)


def test_attach_detaches_and_demo_ends(tmp_path: Path, newest_run: Callable[[], RunInfo]) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    terminal = Terminal("-m", "tuimon", "run", "--attach", "--name", "mine", str(script))
    try:
        shown = terminal.until("LIVE")
        assert "mine" in shown
        info = newest_run()
        terminal.send(b"q")
        terminal.until(lambda text: f"tuimon attach {info.id}" in text)
        assert terminal.end() == 0
    finally:
        terminal.close()
    assert registry.is_alive(info)
    output = info.path / "output.log"
    assert eventually(lambda: "a line of the script" in output.read_text())

    refused = Terminal("-m", "tuimon", "run", "--attach", str(tmp_path / "missing.py"))
    try:
        refused.until("does not exist")
        assert refused.end() == 125
    finally:
        refused.close()

    demo = Terminal("-m", "tuimon", "demo", "nan-batch")
    try:
        demo.until("LIVE")
        shown_run = newest_run()
        assert shown_run.name == "demo-nan-batch"
        demo.send(b"q")
        demo.until("stopping the demo")
        assert demo.end() == 0
    finally:
        demo.close()
    assert eventually(lambda: not registry.is_alive(shown_run))
