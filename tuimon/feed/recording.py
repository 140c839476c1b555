"""A recording of a process of a run, as it is read again: what is whole, in order, and a count of
what is not. `recorder.Recorder` is the only writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tuimon.errors import NoSuchRun
from tuimon.feed import private
from tuimon.feed.codec import decode
from tuimon.feed.frames import DAMAGED, TORN, Damage, Frame
from tuimon.feed.recorder import Recorder
from tuimon.feed.registry import RunInfo
from tuimon.feed.segments import RUN_FILE, Segment, segments_in
from tuimon.model.records import AnyRecord


class Recording:
    """The recording of one process, read-only. Damage is counted as it is met.

    Attributes:
        segments: in order.
        info: the run; None where no part of the recording says so.
        lost: records that were not whole where it was read, by reason: "damaged", "undecodable",
            and "torn" for an end that is none.
    """

    def __init__(self, segments: list[Segment], info: RunInfo | None) -> None:
        self.segments = segments
        self.info = info
        self._torn: dict[int, int] = {}  # by segment, however often that is read
        self._damaged: dict[int, int] = {}
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
            TORN: sum(self._torn.values()),
            DAMAGED: sum(self._damaged.values()),
            "undecodable": self._undecodable,
        }
        return {reason: count for reason, count in counts.items() if count}

    def records(self, segment: int = 0) -> Iterator[tuple[int, AnyRecord]]:
        """(sequence in its source, record) in order, from the beginning of a segment on.

        Memory is bounded by the largest record.
        """
        for frame in self.frames(segment):
            record = self.decoded(frame)
            if record is not None:
                yield frame.sequence, record

    def decoded(self, frame: Frame) -> AnyRecord | None:
        """The record of a frame; None, and counted, where this version does not know it."""
        try:
            return decode(frame.payload)
        except (msgspec.DecodeError, ValueError):
            self._undecodable += 1
            return None

    def frames(self, segment: int = 0) -> Iterator[Frame]:
        """The frames of records in order, each once."""
        newest = 0
        for place in range(segment, len(self.segments)):
            for frame in self._frames_of(place):
                if frame.ordinal > newest:
                    newest = frame.ordinal
                    yield frame

    def _frames_of(self, place: int) -> Iterator[Frame]:
        """The frames of one segment; the records that are missing among them are counted."""
        segment, damage = self.segments[place], Damage()
        is_whole = segment.head is None or segment.head.level == 0  # else gaps are of the thinning
        expected, missing, seen = segment.first, 0, 0
        for frame in segment.frames(damage):
            missing += max(0, frame.ordinal - expected)
            expected, seen = frame.ordinal + 1, damage.damaged
            self._note(self._damaged, place, missing if is_whole else damage.damaged)
            yield frame
        at_end = damage.damaged - seen
        if place + 1 < len(self.segments):
            missing += max(0, self.segments[place + 1].first - expected)
        else:
            missing += at_end
            self._note(self._torn, place, damage.torn)
        self._note(self._damaged, place, missing if is_whole else damage.damaged)

    @staticmethod
    def _note(counts: dict[int, int], place: int, count: int) -> None:
        counts[place] = max(counts.get(place, 0), count)


def read_recording(path: Path, pid: int | None = None) -> Recording:
    """The recording of a process: in a folder all of its segments, or a single file.

    Args:
        path: a folder of recordings, or one `*.tuimon` file.
        pid: the process; None is that of the lowest rank.

    Raises:
        NoSuchRun: there is nothing to read, or nothing of it is whole.
        IncompatibleVersion: a file is no recording, or of another format.
    """
    try:
        if not path.is_dir():
            only = Segment(path)
            _refuse_void([only], path)
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
    _refuse_void(own, path)
    return Recording(own, info or next((each.head.run for each in own if each.head), None))


def run_of(folder: Path) -> RunInfo | None:
    """The run that a folder of recordings belongs to; None where it does not say."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        payload = private.read_small(folder / RUN_FILE, 8 << 20)
        return msgspec.json.decode(payload, type=RunInfo)
    return None


def _refuse_void(segments: list[Segment], path: Path) -> None:
    if all(each.is_void for each in segments):
        size = sum(each.size_bytes for each in segments)
        raise NoSuchRun(f"{path} has {size:,} bytes, and nothing whole of a recording in them")


def _is_of(segment: Segment, pid: int | None) -> bool:
    if segment.head is not None:
        return segment.head.pid == pid
    return pid is None or segment.path.name.startswith(f"{pid}-")


__all__ = ["Recorder", "Recording", "read_recording", "run_of"]
