"""What the scribe reads: the trainer's ring, decoded, with everything that went missing counted."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuimon.feed.codec import decode
from tuimon.feed.ring import RingReader
from tuimon.model.records import AnyRecord

READ_RECORDS = 2000  # per read, with READ_S: one turn stays short however far behind it is
READ_S = 0.05
# A record that is torn at the head of a killed writer is believed after a few looks.
_EMPTY_READS_AT_END = RingReader.TORN_AFTER + 1


class Intake:
    """Opens the ring as soon as there is one, from its first record on.

    Attributes:
        newest: (sequence, payload) of the records that the last read returned, and of those
            among them that were not understood.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: RingReader | None = None
        self._undecodable = 0
        self.newest: list[tuple[int, bytes]] = []

    @property
    def is_open(self) -> bool:
        return self._reader is not None

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest record that was read."""
        return self._reader.last_sequence if self._reader else 0

    @property
    def step_hint(self) -> int | None:
        """The newest step by the ring's header, which is there even where its record is not."""
        return self._reader.status().step if self._reader else None

    @property
    def state(self) -> int | None:
        """The state word of the ring's header; None while there is no ring."""
        return self._reader.status().state if self._reader else None

    @property
    def lost(self) -> dict[str, int]:
        """Records that were written and not understood, by reason."""
        lost = dict(self._reader.lost) if self._reader else {}
        if self._undecodable:
            lost["undecodable"] = self._undecodable
        return lost

    def read(self) -> list[AnyRecord]:
        """The next records in order; none when there are none yet.

        Raises:
            IncompatibleVersion: another version of tuimon writes this ring.
        """
        self.newest = []
        if self._reader is None:
            if not self._path.exists():
                return []
            self._reader = RingReader(self._path, from_sequence=0)
        self.newest = self._reader.read_numbered(READ_RECORDS, READ_S)
        return self._decoded()

    def read_to_end(self) -> list[AnyRecord]:
        """One more piece of what an ended writer left; empty when nothing is left."""
        for _ in range(_EMPTY_READS_AT_END):
            if records := self.read():
                return records
        return []

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _decoded(self) -> list[AnyRecord]:
        records: list[AnyRecord] = []
        for _, payload in self.newest:
            try:
                records.append(decode(payload))
            except (msgspec.DecodeError, ValueError):
                self._undecodable += 1
        return records
