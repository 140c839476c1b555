"""The program under test: the real viewer on this terminal, with a made-up run behind it.

`viewer.py live|still|crash|attach|amid`: a run that goes on, one without news, one whose third
frame raises, the check of the terminal alone, or a run whose viewer is suspended while it holds
the lock of its output.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from dataclasses import replace
from typing import IO

from textual.drivers._writer_thread import WriterThread

from tests.tui.fake import FakeRun, FakeSession
from tuimon.errors import TuimonError
from tuimon.tui import start
from tuimon.view.frame import Frame


class Moving(FakeSession):
    """A run that makes a step every 50 ms."""

    def __init__(self) -> None:
        super().__init__(FakeRun(steps=200, blocks=2, incident=True).frame(name="pty-run"))
        self.born_s = time.monotonic()

    def tick(self) -> Frame:
        step = 199 + int((time.monotonic() - self.born_s) * 20)
        self.current = replace(self.current, step=step)
        return self.current


class Crashing(FakeSession):
    """A run whose reader has a defect."""

    ticks = 0

    def tick(self) -> Frame:
        self.ticks += 1
        if self.ticks > 3:
            password = "secret-in-a-local"
            raise ValueError(f"a defect of {len(password)} letters")
        return self.current


def suspend_amid_a_write() -> None:
    """SIGTSTP, once a picture is there, at the one instruction where a handler must not write."""
    init = WriterThread.__init__

    class Queue(queue.Queue):  # type: ignore[type-arg]
        struck = False

        def _put(self, item: object) -> None:  # called with the lock held
            super()._put(item)
            if not Queue.struck and "pty-run" in str(item):
                Queue.struck = True
                os.kill(os.getpid(), signal.SIGTSTP)

    def with_such_a_queue(self: WriterThread, file: IO[str]) -> None:
        init(self, file)
        self._queue = Queue()

    WriterThread.__init__ = with_such_a_queue  # type: ignore[method-assign]


def main(what: str) -> int:
    """Run the viewer; its exit code."""
    try:
        if what == "attach":
            return start.attach(None)
        if what == "crash":
            return start.watch(Crashing(FakeRun(steps=50, blocks=1).frame()))
        if what == "still":
            return start.watch(FakeSession(FakeRun(steps=100, blocks=1).frame(name="still-run")))
        if what == "amid":
            suspend_amid_a_write()
        return start.watch(Moving())
    except TuimonError as error:
        print(f"tuimon: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
