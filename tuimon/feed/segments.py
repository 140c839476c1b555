"""One file of a recording: its head, the run so far as a checkpoint, then frames in order.

A segment is appended to while it is the newest and only ever replaced as a whole afterwards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tuimon.errors import IncompatibleVersion
from tuimon.feed import private
from tuimon.feed.frames import (
    FILE_MAGIC,
    KIND_CHECKPOINT,
    KIND_HEAD,
    OWN,
    Damage,
    Frame,
    frames_of,
    packed,
)
from tuimon.feed.history import History, decoder
from tuimon.feed.registry import RunInfo

SUFFIX = ".tuimon"
RUN_FILE = "run.json"
RECORDING_VERSION = 1
COMPRESS_UP_TO = 1 << 20  # bytes of a checkpoint: beyond, norms make up most, and time counts


class SegmentHead(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a segment.

    Attributes:
        version: of this format.
        run: the run, as it was when the segment was begun.
        pid: of the process whose records these are.
        first: ordinal of the first frame that it may hold.
        level: 0 for all that was written; each level above keeps less of what is not telling.
        end: the ordinal behind its last one, where it was thinned; None while it may grow.
        left_out: records that were thinned out.
        step: newest step before its first record; None at the beginning.
        time_s: unix time at which it was begun.
    """

    version: int
    run: RunInfo
    pid: int
    first: int = 1
    level: int = 0
    end: int | None = None
    left_out: int = 0
    step: int | None = None
    time_s: float = 0.0


_head_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(SegmentHead)


def opening(head: SegmentHead, checkpoint: bytes) -> bytes:
    """The beginning of a segment: magic, head, checkpoint (an encoded history; b"" for none)."""
    parts = [
        FILE_MAGIC,
        packed(Frame(0, 0, OWN, KIND_HEAD, _head_encoder.encode(head)), compress=True),
    ]
    if checkpoint:
        frame = Frame(0, 0, OWN, KIND_CHECKPOINT, checkpoint)
        parts.append(packed(frame, compress=len(checkpoint) <= COMPRESS_UP_TO))
    return b"".join(parts)


class Segment:
    """A segment file to read; holds nothing open between two calls.

    Attributes:
        path: the file.
        head: what it says of itself; None where that is damaged, its records may be whole.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError where it cannot be read, IncompatibleVersion where it is no recording."""
        self.path = path
        self.head: SegmentHead | None = None
        with private.open_reading(path, follows=True) as file:
            if file.read(len(FILE_MAGIC)) != FILE_MAGIC and not _looks_zeroed(path):
                raise IncompatibleVersion(f"{path} is not a recording of tuimon")
            first = next(frames_of(file, Damage()), None)
        if first is not None and first.kind == KIND_HEAD:
            with contextlib.suppress(msgspec.MsgspecError, ValueError):
                self.head = _head_decoder.decode(first.payload)
        if self.head is not None and self.head.version != RECORDING_VERSION:
            raise IncompatibleVersion(
                f"{path} has recording format {self.head.version}, this tuimon reads "
                f"{RECORDING_VERSION}; use the tuimon that wrote it"
            )

    @property
    def first(self) -> int:
        """Ordinal of the first frame that it may hold; by its name where the head is damaged."""
        if self.head is not None:
            return self.head.first
        told = self.path.name.removesuffix(SUFFIX).rpartition("-")[2]
        return int(told) if told.isdecimal() else 1

    @property
    def size_bytes(self) -> int:
        """Of the file; 0 where it is gone."""
        with contextlib.suppress(OSError):
            return os.stat(self.path).st_size
        return 0

    @property
    def is_void(self) -> bool:
        """Whether nothing in it is whole, not even what it says of itself."""
        if self.head is not None:
            return False
        with contextlib.suppress(OSError), private.open_reading(self.path, follows=True) as file:
            file.seek(len(FILE_MAGIC))
            return next(frames_of(file, Damage()), None) is None
        return True

    def frames(self, damage: Damage, behind: int = 0) -> Iterator[Frame]:
        """The frames of records, in order; what is not whole is counted in `damage`.

        Those up to the ordinal `behind` come without their payload.
        """
        try:
            with private.open_reading(self.path, follows=True) as file:
                file.seek(len(FILE_MAGIC))
                for frame in frames_of(file, damage, behind):
                    if frame.source != OWN:
                        yield frame
        except OSError:
            damage.damaged += 1

    def checkpoint_bytes(self) -> bytes:
        """The run before the first record, as it lies there; b"" where there is none."""
        with (
            contextlib.suppress(OSError),
            private.open_reading(self.path, follows=True) as file,
        ):
            file.seek(len(FILE_MAGIC))
            for frame in frames_of(file, Damage()):
                if frame.kind == KIND_CHECKPOINT and frame.source == OWN:
                    return frame.payload
                if frame.source != OWN:
                    break
        return b""

    def checkpoint(self) -> History | None:
        """The run before the first record; None where there is none, or it is damaged."""
        payload = self.checkpoint_bytes()
        if not payload:
            return None
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            return decoder().decode(payload)
        return None


def segment_name(pid: int, first: int) -> str:
    """Of the segment of a process that begins at this ordinal; sorts in order."""
    return f"{pid}-{first:012d}{SUFFIX}"


def segments_in(folder: Path, pid: int | None = None) -> list[Segment]:
    """The readable segments of a process in order, those that a merged one covers left out.

    Args:
        folder: of the recording.
        pid: of the process; None takes the segments of all.
    """
    found: list[Segment] = []
    pattern = f"{'*' if pid is None else pid}-*{SUFFIX}"
    for path in sorted(folder.glob(pattern)):
        with contextlib.suppress(OSError, IncompatibleVersion):
            found.append(Segment(path))
    ends: dict[int, int] = {}
    kept = []
    for each in found:
        head = each.head
        if head is None:
            kept.append(each)
        elif head.first >= ends.get(head.pid, 0):
            kept.append(each)
            ends[head.pid] = head.end or 0
    return kept


def _looks_zeroed(path: Path) -> bool:
    """Whether the beginning is a page that a crash of the machine has left empty."""
    with private.open_reading(path, follows=True) as file:
        start = file.read(len(FILE_MAGIC))
    return path.suffix == SUFFIX and (len(start) < len(FILE_MAGIC) or not any(start))
