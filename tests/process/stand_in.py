"""The writer's process as a test holds it, and waiting for a frame."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tests.process import ring_writer
from tuimon.feed import registry
from tuimon.view.frame import Frame
from tuimon.view.session import Session

PATIENCE_S = 20.0


class StandIn:
    """The writer's process as the test holds it."""

    def __init__(self, capacity_bytes: int = 1 << 20) -> None:
        self.process = subprocess.Popen(
            [sys.executable, ring_writer.__file__, str(capacity_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.run_id = self.process.stdout.readline().strip()
        self.info = registry.find_run(self.run_id)

    def order(self, text: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()


def until(session: Session, condition: Callable[[Frame], bool]) -> Frame:
    """Tick until the frame is as expected."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        frame = session.tick()
        if condition(frame):
            return frame
        assert time.monotonic() < deadline, f"still {frame.state}: {frame.state_detail}"
        time.sleep(0.005)
