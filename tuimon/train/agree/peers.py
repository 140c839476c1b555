"""Whether the other ranks still live, as far as somebody waits for them.

Used by the agreeing thread. On this host the process is looked for; elsewhere its beats count.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable

from tuimon.feed.process import start_ticks
from tuimon.train.agree.link import Link
from tuimon.train.agree.messages import Here

BEAT_S = 1.0
SILENT_S = 15.0  # fifteen beats: a thread may wait long for the GIL, and a store for its network


class Peers:
    """The ranks that this one depends on: rank 0 on all, all others on rank 0."""

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._others: Iterable[int] = range(1, link.size) if link.rank == 0 else (0,)
        self._beats = 0
        self._next_s = 0.0
        self._host = socket.gethostname()
        self._places: dict[int, Here] = {}
        self._seen: dict[int, tuple[str | None, float]] = {}  # newest beat, and since when

    def come(self) -> None:
        """Say that this rank takes part."""
        pid = os.getpid()
        self._link.put(f"here/{self._link.rank}", Here(self._host, pid, start_ticks(pid) or 0))

    def look(self, *, waits: bool) -> str:
        """Beat, and where somebody `waits`, look for the others; who is gone, or ""."""
        now_s = self._clock()
        if now_s < self._next_s:
            return ""
        self._next_s = now_s + BEAT_S
        self._beats += 1
        self._link.set(f"beat/{self._link.rank}", str(self._beats))
        if not waits:
            self._seen.clear()
            return ""
        beats = self._link.words([f"beat/{rank}" for rank in self._others])
        for rank, beat in zip(self._others, beats, strict=True):
            if self._has_ended(rank):
                return f"rank {rank} is gone"
            known = self._seen.get(rank)
            if known is None or known[0] != beat:
                self._seen[rank] = beat, now_s
            elif now_s - known[1] > SILENT_S:
                return f"rank {rank} has not been heard of for {SILENT_S:g} s"
        return ""

    def _has_ended(self, rank: int) -> bool:
        """Whether the process of a rank on this host is no longer there."""
        place = self._places.get(rank)
        if place is None:
            if not self._link.has([f"here/{rank}"]):
                return False
            place = self._places[rank] = self._link.get(f"here/{rank}", Here)
        return place.host == self._host and start_ticks(place.pid) != place.start_ticks
