"""Whether the training still lives, and a sleep that ends when it does."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterable

from tuimon.feed.process import start_ticks


class Trainer:
    """The very process that is observed: pid and start time, by pidfd where there is one."""

    def __init__(self, pid: int, started_ticks: int) -> None:
        self._pid = pid
        self._ticks = started_ticks
        self._poll: select.poll | None = None
        self._descriptor: int | None = None
        self._gone = False
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._descriptor = os.pidfd_open(pid)
                self._poll = select.poll()
                self._poll.register(self._descriptor, select.POLLIN)
        # The pid may have passed to another process before the descriptor was opened.
        self._gone = not self._is_the_same()

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, reaped or not."""
        if not self._gone:
            self._gone = bool(self._poll.poll(0)) if self._poll else not self._is_the_same()
        return self._gone

    @property
    def descriptor(self) -> int | None:
        """Readable once the process has ended; None where the system has no such thing."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self._poll = None, None

    def _is_the_same(self) -> bool:
        return start_ticks(self._pid) == self._ticks


def wait(trainers: Iterable[Trainer], limit_s: float) -> None:
    """Sleep at most `limit_s`, less when one of these processes ends."""
    living = [each for each in trainers if not each.is_gone]
    descriptors = [each.descriptor for each in living if each.descriptor is not None]
    if len(descriptors) < len(living) or not living:
        time.sleep(limit_s)
        return
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(limit_s * 1000)
