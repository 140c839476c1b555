"""The writing end of a recording: segments are appended to, and thinned when they are too much.

A folder has `run.json` and the segments of each process; there is one writer a process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tuimon.errors import IncompatibleVersion
from tuimon.feed import paths, private
from tuimon.feed.coarsening import DETAIL, TOP_LEVEL, coarsened
from tuimon.feed.frames import TRAINER, Damage, Frame, kind_of, packed
from tuimon.feed.history import History
from tuimon.feed.registry import RunInfo
from tuimon.feed.segments import (
    RECORDING_VERSION,
    RUN_FILE,
    Segment,
    SegmentHead,
    opening,
    segment_name,
    segments_in,
)
from tuimon.model.records import Facts, Hello, LayerTable

MAX_BYTES = 128 << 20  # of one run: an hour of a small model in full, any length thinned
KEEP_FREE_BYTES = 256 << 20  # the disk may be where the training saves its checkpoints
SEGMENTS = 16  # about so many fit a recording: what is seeked to is read from the last one before
MIN_SEGMENT_BYTES = 64 << 10
# A checkpoint is written after so many times its bytes, and none that takes more than a share.
CHECKPOINT_EVERY, LARGEST_CHECKPOINT = 5, 1 / 16
# Frames between two checkpoints, where they are small: half a second of a viewer that seeks.
SEGMENT_FRAMES = 4_096
BUFFER_BYTES = 1 << 20
MERGE_FROM = 4  # segments of a level before the two oldest become one of the next
HARD_BOUND = 1.25  # times the bound: there even what is telling is no longer taken
_REPEATED = {cls.__struct_config__.tag for cls in (Hello, LayerTable, Facts)}
_encode = msgspec.msgpack.Encoder().encode


class Recorder:
    """Appends the records of one process. Never raises; belongs to one thread.

    Attributes:
        problem: why nothing is recorded any more, as one sentence; "" while it goes on.
        ordinal: of the newest frame.
        path: the segment that is written.
    """

    def __init__(
        self,
        folder: Path,
        run: RunInfo,
        pid: int,
        *,
        max_bytes: int = MAX_BYTES,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin to record into a folder, behind what an earlier recorder left there.

        Args:
            folder: of the run; made where it is missing.
            run: what the recording says of the run.
            pid: of the process whose records these are.
            max_bytes: of its segments together; old detail is thinned beyond.
            keep_free_bytes: of the disk; with less nothing is recorded any more.
            clock: unix time.
        """
        self.folder = folder
        self.problem = ""
        self.ordinal = 0
        self.path = folder / segment_name(pid, 1)
        self._run = run
        self._pid = pid
        self._max_bytes = max_bytes
        self._keep_free_bytes = keep_free_bytes
        self._clock = clock
        self._descriptor: int | None = None
        self._first = 1
        self._written = 0  # bytes of the segment that are whole frames
        self._wanted = max(MIN_SEGMENT_BYTES, max_bytes // SEGMENTS)
        self._checkpoint_bytes = 0  # of the newest one
        self._since_checkpoint = 0
        self._checkpoint_at = 0  # ordinal before it
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._newest: dict[int, bytes] = {}  # of the kinds that are published again and again
        self._closed: list[Segment] = []
        self._closed_bytes = 0
        self._thinning: Iterator[None] | None = None
        self._is_over_bound = False
        self._open()

    @property
    def is_full(self) -> bool:
        """Whether the segment has its size, so that `begin` should follow."""
        size = self._written + self._buffered
        is_long = self.ordinal - self._first >= SEGMENT_FRAMES
        return (size >= self._wanted or is_long) and not self.problem

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the next segment should hold the run so far; it need not begin with it."""
        due = self._since_checkpoint + self._written + self._buffered
        fits = self._checkpoint_bytes <= LARGEST_CHECKPOINT * self._max_bytes
        is_long = self.ordinal - self._checkpoint_at >= SEGMENT_FRAMES
        return fits and due >= (1 if is_long else CHECKPOINT_EVERY) * self._checkpoint_bytes

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return self._closed_bytes + self._written

    def append(self, payload: bytes, sequence: int = 0, source: int = TRAINER) -> None:
        """Take in one encoded record; what is only published again is left out."""
        if self.problem:
            return
        kind = kind_of(payload)
        if self._is_over_bound and kind in DETAIL:
            return
        if kind in _REPEATED:
            if self._newest.get(kind) == payload:
                return
            self._newest[kind] = payload
        self.ordinal += 1
        data = packed(Frame(self.ordinal, sequence, source, kind, payload))
        self._buffer.append(data)
        self._buffered += len(data)
        if self._buffered >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was taken in; kill -9 loses at most what came after."""
        if self._descriptor is None or not self._buffer:
            return
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered = 0
        self._write(data)

    def begin(self, history: History | None = None, step: int | None = None) -> None:
        """Begin a new segment, which holds the run so far where that is given."""
        self.flush()
        if self.problem:
            return
        self._close()
        free = paths.free_bytes(self.folder)
        if free < self._keep_free_bytes:
            self._stop(f"only {free >> 20} MiB are free in {self.folder}")
            return
        self._first = self.ordinal + 1
        self.path = self.folder / segment_name(self._pid, self._first)
        checkpoint = b"" if history is None else _encode(history)
        head = SegmentHead(
            version=RECORDING_VERSION,
            run=self._run,
            pid=self._pid,
            first=self._first,
            step=step,
            time_s=self._clock(),
        )
        start = opening(head, checkpoint)
        if checkpoint:
            self._checkpoint_bytes = len(start)
            self._since_checkpoint = 0
            self._checkpoint_at = self.ordinal
            if len(start) > LARGEST_CHECKPOINT * self._max_bytes:
                start = opening(head, b"")
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_TRUNC
            self._descriptor = private.open_own(self.path, flags)
        except OSError as error:
            self._stop(f"{self.path}: {error.strerror}")
            return
        self._write(start)

    def thin(self, max_s: float) -> None:
        """Thin old segments for about so long, where there is more than the bound."""
        if self._thinning is None and self.size_bytes > self._max_bytes and not self.problem:
            self._thinning = self._next_thinning()
            self._is_over_bound = self._thinning is None
            if self._is_over_bound and self.size_bytes > HARD_BOUND * self._max_bytes:
                self._stop(f"all {self._max_bytes >> 20} MiB are taken by what must stay")
        if self._thinning is None:
            return
        deadline = time.monotonic() + max_s
        try:
            for _ in self._thinning:
                if time.monotonic() >= deadline:
                    return
        except OSError as error:
            self._stop(f"{self.folder}: {error.strerror}")
        self._thinning = None
        self._take_stock()

    def describe(self, run: RunInfo) -> None:
        """Let the folder say of the run what is known now."""
        self._run = run
        with contextlib.suppress(OSError):
            private.replace(self.folder / RUN_FILE, msgspec.json.encode(run))

    def close(self) -> None:
        """Write the rest and let go. Safe to call twice."""
        self.flush()
        self._close()
        self._abandon()

    def _open(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chmod(self.folder, 0o700)
        except OSError as error:
            self._stop(f"{self.folder}: {error.strerror}")
            return
        self.describe(self._run)
        for draft in self.folder.glob(f".{self._pid}-*"):  # of a scribe that was killed
            draft.unlink(missing_ok=True)
        self._first = 0  # nothing is being written
        self._take_stock()
        if self._closed:
            last = self._closed[-1]
            first = last.head.first if last.head else 1
            self.ordinal = max((frame.ordinal for frame in last.frames(Damage())), default=first)
        self.begin()

    def _take_stock(self) -> None:
        """Look which segments are there beside the one that is written."""
        found = segments_in(self.folder, self._pid)
        self._closed = [each for each in found if each.path != self.path or not self._first]
        self._closed_bytes = sum(each.size_bytes for each in self._closed)

    def _next_thinning(self) -> Iterator[None] | None:
        """What to thin next: the oldest two of the lowest level that has several."""
        levels: dict[int, list[Segment]] = {}
        for each in self._closed:
            if each.head is not None:
                levels.setdefault(each.head.level, []).append(each)
        for enough in (MERGE_FROM, 2):
            for level in sorted(levels):
                if len(levels[level]) >= enough:
                    return self._thinned(levels[level][:2], min(level + 1, TOP_LEVEL))
        for level in sorted(levels):
            if level < TOP_LEVEL:
                return self._thinned(levels[level][:1], level + 1)
        return None

    def _thinned(self, segments: list[Segment], level: int) -> Iterator[None]:
        behind = self._closed[self._closed.index(segments[-1]) + 1 :]
        ends = [each.head.first for each in behind if each.head is not None]
        return coarsened(segments, level, next(iter(ends), self._first))

    def _write(self, data: bytes) -> None:
        assert self._descriptor is not None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
            self._written += len(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._written)
            self._stop(f"{self.path}: {error.strerror}")

    def _abandon(self) -> None:
        """Leave a thinning that is half done: nothing of it has been changed."""
        close = getattr(self._thinning, "close", None)
        if close is not None:
            close()
        self._thinning = None

    def _stop(self, why: str) -> None:
        self._buffer.clear()
        self._buffered = 0
        self._close()
        self.problem = f"nothing is recorded from here on: {why}"

    def _close(self) -> None:
        if self._descriptor is None:
            return
        os.close(self._descriptor)
        self._descriptor = None
        with contextlib.suppress(OSError, IncompatibleVersion):
            self._closed.append(Segment(self.path))
        self._closed_bytes += self._written
        self._since_checkpoint += self._written
        self._written = 0
