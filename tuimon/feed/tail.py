"""Following a run on this host: its rings across replacements of their files, and its life.

Reads only; belongs to one thread.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tuimon.errors import NoSuchRun, TuimonError
from tuimon.feed import registry
from tuimon.feed.codec import decode
from tuimon.feed.process import scribe_has_left
from tuimon.feed.registry import ExitInfo, RankInfo, RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model.records import AnyRecord

ALIVE_EVERY_S = 0.25
EXIT_EVERY_S = 0.5
DRAINED_AFTER = RingReader.TORN_AFTER + 1  # looks at a torn record before it is believed

Clock = Callable[[], float]


class RingTail:
    """One ring, read from wherever it begins, across replacements of its file.

    Attributes:
        empty_reads: reads in a row that found nothing.
        last_sequence, inode: of the newest record that was read, and of the file it lay in.
    """

    def __init__(self, path: Path, from_sequence: int | None, *, inode: int = 0) -> None:
        """Start behind record `from_sequence`; where `inode` is given, only if the file has it."""
        self._path = path
        self._from_sequence = from_sequence
        self._expected_inode = inode
        self._reader: RingReader | None = None
        self._lost: dict[str, int] = {}
        self.empty_reads = 0
        self.last_sequence = from_sequence or 0
        self.inode = inode

    @property
    def path(self) -> Path:
        """Of the ring's file."""
        return self._path

    @property
    def reader(self) -> RingReader | None:
        return self._reader

    @property
    def lost(self) -> dict[str, int]:
        """Records that were written and never seen or not understood, by reason."""
        total = dict(self._lost)
        for reason, count in (self._reader.lost if self._reader else {}).items():
            total[reason] = total.get(reason, 0) + count
        return total

    def payloads(self, max_records: int, max_s: float) -> list[bytes]:
        """New records as they lie in the ring; none while there is no file.

        Raises:
            IncompatibleVersion: another version of tuimon writes this ring.
        """
        if self._reader is None and not self._connect():
            return []
        assert self._reader is not None
        payloads = self._reader.read(max_records, max_s)
        self.last_sequence = self._reader.last_sequence
        self.empty_reads = 0 if payloads else self.empty_reads + 1
        if not payloads and self._is_replaced():
            self.close()
            self._from_sequence = None  # another writer counts anew
            self.empty_reads = 0
        return payloads

    def read(self, max_records: int, max_s: float) -> list[AnyRecord]:
        """New records; those that do not decode are counted as lost.

        Raises:
            IncompatibleVersion: another version of tuimon writes this ring.
        """
        return decoded(self.payloads(max_records, max_s), self._lost)

    def close(self) -> None:
        """Unmap. Safe to call twice."""
        if self._reader is not None:
            self._lost = self.lost
            self._reader.close()
            self._reader = None

    def _connect(self) -> bool:
        try:
            if self._expected_inode and self._path.stat().st_ino != self._expected_inode:
                self._from_sequence = None
            self._expected_inode = 0
            self._reader = RingReader(self._path, self._from_sequence)
        except (NoSuchRun, FileNotFoundError):
            return False
        self.inode = self._reader.inode
        return True

    def _is_replaced(self) -> bool:
        assert self._reader is not None
        try:
            return self._path.stat().st_ino != self._reader.inode
        except OSError:
            return False  # deleted: what is mapped stays readable


def in_parts(payloads: list[bytes], part_bytes: int) -> list[list[bytes]]:
    """Payloads in pieces of about so many bytes, none empty."""
    parts: list[list[bytes]] = []
    room = 0
    for payload in payloads:
        if room <= len(payload) or not parts:
            parts.append([])
            room = part_bytes
        parts[-1].append(payload)
        room -= len(payload)
    return parts


def decoded(payloads: list[bytes], lost: dict[str, int]) -> list[AnyRecord]:
    """The records in `payloads`; what does not decode is counted in `lost`."""
    records: list[AnyRecord] = []
    for payload in payloads:
        try:
            records.append(decode(payload))
        except (msgspec.DecodeError, ValueError):
            lost["undecodable"] = lost.get("undecodable", 0) + 1
    return records


class Pulse:
    """Whether a process of a run exists, how it ended, and whether its folder is still there.

    Asks the system a few times a second at most.

    Attributes:
        info: the run as it was last read; ranks may have joined since.
        exit: how it ended, where somebody has written that down.
        is_deleted: its folder is gone.
        scribe_has_left: there was a scribe, and there is none any more.
        lost_spawner: pid of the process that spawned it, where that is gone; else 0.
    """

    def __init__(
        self, info: RunInfo, clock: Clock = time.monotonic, *, rank: int | None = None
    ) -> None:
        """`rank` is the one to follow; without one it is the lowest, whoever that comes to be."""
        self.info = info
        self._rank = rank
        self._me = _process(info, rank)
        self._clock = clock
        self._alive = True
        self._alive_at_s = -ALIVE_EVERY_S
        self._exit_at_s = -EXIT_EVERY_S
        self._stamp: tuple[int, int] | None = None
        self.exit: ExitInfo | None = _exit_of(info, self._me)
        self.is_deleted = False
        self.scribe_has_left = False
        self.lost_spawner = 0

    @property
    def ring(self) -> Path:
        """The ring of the process."""
        return self.info.path / self._me.ring

    @property
    def history(self) -> Path:
        """The thinned history of the process."""
        return self.info.history(self.info.index_of(self._me.rank) or 0)

    def is_alive(self, on_death: Callable[[], None]) -> bool:
        """Liveness by pid and start time; `on_death` is called once, when it has just ended."""
        now_s = self._clock()
        if now_s - self._alive_at_s >= ALIVE_EVERY_S:
            self._alive_at_s = now_s
            self._reread()
            self.is_deleted = not self.ring.exists()
            self.scribe_has_left = scribe_has_left(self.info.path)
            self.lost_spawner = registry.lost_spawner(self.info)
            if self._alive:
                elsewhere = self.info.host != socket.gethostname()
                self._alive = elsewhere or registry.rank_is_alive(self._me)
                if not self._alive:
                    on_death()
        if not self._alive and self.exit is None and now_s - self._exit_at_s >= EXIT_EVERY_S:
            self._exit_at_s = now_s
            self.exit = self._read_exit()
        return self._alive

    def _reread(self) -> None:
        """Notice who has joined: a lower rank, or ranks that the process has spawned."""
        try:
            stat = os.stat(self.info.path / "run.json")
        except OSError:
            return
        stamp = stat.st_mtime_ns, stat.st_ino
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.info = registry.load(self.info.path)
        except TuimonError:
            return
        me = _process(self.info, self._rank)
        if me.pid != self._me.pid:
            self._me = me
            self._alive = True

    def _read_exit(self) -> ExitInfo | None:
        try:
            return _exit_of(registry.load(self.info.path), self._me)
        except TuimonError:
            return None


def _process(info: RunInfo, rank: int | None) -> RankInfo:
    index = None if rank is None else info.index_of(rank)
    return info.ranks[index or 0]


def _exit_of(info: RunInfo, process: RankInfo) -> ExitInfo | None:
    """The end of a process of several; that of the run where it is the only one."""
    own = next((each.exit for each in info.ranks if each.pid == process.pid), None)
    return own if own is not None and len(info.ranks) > 1 else info.exit
