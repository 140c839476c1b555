"""A recording of a process of a run: how it is appended to, and how it is read again.

A folder has `run.json` and segments; `Recorder` is the only writer. Whoever reads gets what is
whole, in order, and a count of what is not. Thinning of old segments is `feed.coarsening`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tuimon.errors import NoSuchRun
from tuimon.feed import paths, private
from tuimon.feed.codec import decode
from tuimon.feed.frames import DAMAGED, TORN, TRAINER, Damage, Frame, kind_of, packed
from tuimon.feed.history import History
from tuimon.feed.registry import RunInfo
from tuimon.feed.segments import (
    RECORDING_VERSION,
    SUFFIX,
    Segment,
    SegmentHead,
    opening,
    segment_name,
    segments_in,
)
from tuimon.model.records import AnyRecord, Facts, Hello, LayerTable

RUN_FILE = "run.json"
MAX_BYTES = 128 << 20  # of one run: an hour of a small model in full, any length thinned
KEEP_FREE_BYTES = 256 << 20  # the disk may be where the training saves its checkpoints
SEGMENTS = 16  # about so many fit a recording: what is seeked to is read from the last one before
MIN_SEGMENT_BYTES = 64 << 10
CHECKPOINT_SHARE = 8  # a segment has so many times the bytes of its checkpoint
BUFFER_BYTES = 1 << 20
_REPEATED = {cls.__struct_config__.tag for cls in (Hello, LayerTable, Facts)}
_encode = msgspec.msgpack.Encoder().encode


class Recorder:
    """Appends the records of one process. Never raises; belongs to one thread.

    Attributes:
        problem: why nothing is recorded any more, as one sentence; "" while it goes on.
        ordinal: of the newest frame.
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
        self.folder = folder
        self.problem = ""
        self.ordinal = 0
        self._run = run
        self._pid = pid
        self._max_bytes = max_bytes
        self._keep_free_bytes = keep_free_bytes
        self._clock = clock
        self._descriptor: int | None = None
        self._path = folder / segment_name(pid, 1)
        self._written = 0  # bytes of the segment that are whole frames
        self._wanted = max(MIN_SEGMENT_BYTES, max_bytes // SEGMENTS)
        self._least = self._wanted
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._newest: dict[int, bytes] = {}  # of the kinds that are published again and again
        self._open(folder)

    @property
    def path(self) -> Path:
        """The segment that is written."""
        return self._path

    @property
    def is_full(self) -> bool:
        """Whether the segment has its size, so that `begin` should follow."""
        return self._written + self._buffered >= self._least and not self.problem

    def append(self, payload: bytes, sequence: int = 0, source: int = TRAINER) -> None:
        """Take in one encoded record; what is only published again is left out."""
        if self.problem:
            return
        kind = kind_of(payload)
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
        """Begin a new segment, which holds the run so far."""
        self.flush()
        if self.problem:
            return
        self._close()
        free = paths.free_bytes(self.folder)
        if free < self._keep_free_bytes:
            self._stop(f"only {free >> 20} MiB are free in {self.folder}")
            return
        checkpoint = b"" if history is None else _encode(history)
        head = SegmentHead(
            version=RECORDING_VERSION,
            run=self._run,
            pid=self._pid,
            first=self.ordinal + 1,
            step=step,
            time_s=self._clock(),
        )
        start = opening(head, checkpoint)
        self._least = max(self._wanted, CHECKPOINT_SHARE * len(start))
        self._path = self.folder / segment_name(self._pid, self.ordinal + 1)
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_EXCL
            self._descriptor = private.open_own(self._path, flags)
        except OSError as error:
            self._stop(f"{self._path}: {error.strerror}")
            return
        self._written = 0
        self._write(start)

    def describe(self, run: RunInfo) -> None:
        """Let the folder say of the run what is known now."""
        self._run = run
        with contextlib.suppress(OSError):
            private.replace(self.folder / RUN_FILE, msgspec.json.encode(run))

    def close(self) -> None:
        """Write the rest and let go. Safe to call twice."""
        self.flush()
        self._close()

    def _open(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chmod(folder, 0o700)
        except OSError as error:
            self._stop(f"{folder}: {error.strerror}")
            return
        self.describe(self._run)
        earlier = segments_in(folder, self._pid)
        if earlier:  # a scribe that was started again goes on behind them
            last = earlier[-1]
            first = last.head.first if last.head else 1
            self.ordinal = max((frame.ordinal for frame in last.frames(Damage())), default=first)
        self.begin()

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
            self._stop(f"{self._path}: {error.strerror}")

    def _stop(self, why: str) -> None:
        self._buffer.clear()
        self._buffered = 0
        self._close()
        self.problem = f"nothing is recorded from here on: {why}"

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Recording:
    """The recording of one process, read-only. Damage is counted as it is met.

    Attributes:
        segments: in order.
        info: the run; None where no part of the recording says so.
        lost: what was not whole where it was read, by reason: "torn", "damaged", "undecodable".
    """

    def __init__(self, segments: list[Segment], info: RunInfo | None) -> None:
        self.segments = segments
        self.info = info
        self._damage = Damage()
        self._undecodable = 0

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return next((each.head.pid for each in self.segments if each.head), None)

    @property
    def left_out(self) -> int:
        """Records that were thinned out to keep the bound."""
        return sum(each.head.left_out for each in self.segments if each.head)

    @property
    def lost(self) -> dict[str, int]:
        counts = {
            TORN: self._damage.torn,
            DAMAGED: self._damage.damaged,
            "undecodable": self._undecodable,
        }
        return {reason: count for reason, count in counts.items() if count}

    def records(self, segment: int = 0) -> Iterator[tuple[int, AnyRecord]]:
        """(sequence in its source, record) in order, from the beginning of a segment on.

        Memory is bounded by the largest record.
        """
        for frame in self.frames(segment):
            try:
                yield frame.sequence, decode(frame.payload)
            except (msgspec.DecodeError, ValueError):
                self._undecodable += 1

    def frames(self, segment: int = 0) -> Iterator[Frame]:
        """The frames of records in order, each once."""
        newest = 0
        for each in self.segments[segment:]:
            for frame in each.frames(self._damage):
                if frame.ordinal > newest:
                    newest = frame.ordinal
                    yield frame


def read_recording(path: Path, pid: int | None = None) -> Recording:
    """The recording of a process: in a folder all of its segments, or a single file.

    Args:
        path: a folder of recordings, or one `*.tuimon` file.
        pid: the process; None is that of the lowest rank.

    Raises:
        NoSuchRun: there is nothing to read.
        IncompatibleVersion: a file is no recording, or of another format.
    """
    try:
        if not path.is_dir():
            only = Segment(path)
            return Recording([only], only.head.run if only.head else None)
        info = run_of(path)
        segments = segments_in(path)
    except OSError as error:
        raise NoSuchRun(f"cannot read {path}: {error.strerror}") from error
    pids = {each.head.pid for each in segments if each.head}
    ranked = [each.pid for each in info.ranks if each.pid in pids] if info else []
    chosen = pid if pid is not None else next(iter([*ranked, *sorted(pids)]), None)
    own = [each for each in segments if _is_of(each, chosen)]
    if not own:
        raise NoSuchRun(f"no recording in {path}")
    return Recording(own, info or next((each.head.run for each in own if each.head), None))


def run_of(folder: Path) -> RunInfo | None:
    """The run that a folder of recordings belongs to; None where it does not say."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        payload = private.read_small(folder / RUN_FILE, 8 << 20)
        return msgspec.json.decode(payload, type=RunInfo)
    return None


def _is_of(segment: Segment, pid: int | None) -> bool:
    if segment.head is not None:
        return segment.head.pid == pid
    return pid is None or segment.path.name.startswith(f"{pid}-")


__all__ = ["SUFFIX", "Recorder", "Recording", "read_recording", "run_of"]
