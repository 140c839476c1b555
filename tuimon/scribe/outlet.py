"""What the scribe publishes: its own ring beside the trainer's. Without room for it, nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuimon.errors import NoRoom
from tuimon.feed.codec import encode
from tuimon.feed.process import start_ticks
from tuimon.feed.ring import RingWriter
from tuimon.model.records import ENDED, Record

RING_BYTES = 1 << 20  # an hour of readings, once a second


class Outlet:
    """The writing end of `scribe.ring`.

    Attributes:
        sequence: sequence of the newest record in the ring.
        problem: why there is no ring; "" when there is one.
    """

    def __init__(
        self, path: Path, pid: int, also: Callable[[bytes, int], None] = lambda payload, at: None
    ) -> None:
        """`also` gets the bytes and the sequence of every record."""
        self.sequence = 0
        self.problem = ""
        self._also = also
        self._ring: RingWriter | None = None
        try:
            self._ring = RingWriter.create(path, RING_BYTES, start_ticks=start_ticks(pid) or 0)
        except NoRoom as error:
            self.problem = str(error)

    def publish(self, record: Record) -> None:
        """Append one record; never raises."""
        payload = encode(record)
        if self._ring is not None and self._ring.publish(payload):
            self.sequence += 1
        self._also(payload, self.sequence)

    def close(self) -> None:
        """Mark the ring as ended and unmap it."""
        if self._ring is not None:
            self._ring.set_state(ENDED, None)
            self._ring.close()
            self._ring = None
