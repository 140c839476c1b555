"""A recording of a process of a run, as it is read again: what is whole, in order, and a count of
what is not. `recorder.Recorder` is the only writer.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tuimon.errors import NoSuchRun
from tuimon.feed import private, registry
from tuimon.feed.codec import decode
from tuimon.feed.frames import DAMAGED, TORN, Damage, Frame
from tuimon.feed.registry import RunInfo
from tuimon.feed.segments import RUN_FILE, Segment, segments_in
from tuimon.model.records import AnyRecord

# A scribe writes readings once a second, also while the training is paused. What another host
# writes arrives later; here it is known who lives, and a scribe ends soon after its training.
RECENT_S, RECENT_HERE_S = 60.0, 10.0


class Recording:
    """The recording of one process, read-only. Damage is counted as it is met.

    Attributes:
        segments: in order.
        info: the run; None where no part of the recording says so.
        grows: whether its run goes on, so that `look_again` may find more.
        lost: records that were not whole where it was read, by reason: "damaged", "undecodable",
            and "torn" for an end that is none.
    """

    def __init__(
        self,
        segments: list[Segment],
        info: RunInfo | None,
        folder: Path | None = None,
        pid: int | None = None,
    ) -> None:
        self.segments = segments
        self.info = info
        self._folder = folder  # None for a single file, which is what it is
        self._pid = pid
        self._changed_ns = 0 if folder is None else _changed_ns(folder)
        self.grows = self._goes_on()
        self._torn: dict[int, int] = {}  # by beginning of a segment, however often that is read
        self._damaged: dict[int, int] = {}
        self._undecodable = 0

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return next((each.head.pid for each in self.segments if each.head), None)

    @property
    def rank(self) -> int | None:
        """Of the process in its run; None where the run does not say."""
        ranks = self.info.ranks if self.info is not None else []
        return next((each.rank for each in ranks if each.pid == self.pid), None)

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

    @property
    def extent(self) -> tuple[int, int]:
        """Differs when something has been added: the newest segment, and its bytes."""
        newest = self.segments[-1]
        return newest.first, newest.size_bytes

    def look_again(self) -> None:
        """Take note of what has been begun, replaced and said of the run since, where it grows."""
        if not self.grows or self._folder is None:
            return
        changed_ns = _changed_ns(self._folder)
        if changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            # What is said of the run first: behind its end nothing is written any more.
            self.info = run_of(self._folder) or self.info
            self.segments = segments_in(self._folder, self._pid) or self.segments
        self.grows = self._goes_on()

    def place_behind(self, ordinal: int) -> int:
        """The segment in which the records behind this one begin."""
        places = (place for place, each in enumerate(self.segments) if each.first <= ordinal + 1)
        return max(places, default=0)

    def _goes_on(self) -> bool:
        info = self.info
        if self._folder is None or info is None or info.exit is not None:
            return False
        is_recent = False
        with contextlib.suppress(OSError):
            written_s = os.stat(self.segments[-1].path).st_mtime
            limit_s = RECENT_HERE_S if registry.is_here(info) else RECENT_S
            is_recent = time.time() - written_s < limit_s
        return is_recent or registry.is_alive(info)

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

    def frames(self, segment: int = 0, behind: int = 0) -> Iterator[Frame]:
        """The frames of records in order, each once.

        Args:
            segment: the place to begin at.
            behind: the ordinal that has been read before.
        """
        newest, place = behind, segment
        while place < len(self.segments):
            segments = self.segments
            for frame in self._frames_of(segments, place, newest):
                if frame.ordinal > newest:
                    newest = frame.ordinal
                    yield frame
            self.look_again()
            # Segments may have become one, and what was the last one may have been gone on with.
            place = place + 1 if self.segments is segments else self.place_behind(newest)

    def _frames_of(self, segments: list[Segment], place: int, behind: int) -> Iterator[Frame]:
        """The frames of one segment; the records that are missing among them are counted."""
        segment, damage = segments[place], Damage()
        is_whole = segment.head is None or segment.head.level == 0  # else gaps are of the thinning
        expected, missing, seen = segment.first, 0, 0
        for frame in segment.frames(damage, behind):
            missing += max(0, frame.ordinal - expected)
            expected, seen = frame.ordinal + 1, damage.damaged
            self._note(self._damaged, segment, missing if is_whole else damage.damaged)
            yield frame
        at_end = damage.damaged - seen
        if place + 1 < len(segments):
            missing += max(0, segments[place + 1].first - expected)
        else:
            missing += at_end
            if not self.grows:  # else it is not yet whole
                self._note(self._torn, segment, damage.torn)
        self._note(self._damaged, segment, missing if is_whole else damage.damaged)

    @staticmethod
    def _note(counts: dict[int, int], segment: Segment, count: int) -> None:
        counts[segment.first] = max(counts.get(segment.first, 0), count)


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
    told = info or next((each.head.run for each in own if each.head), None)
    return Recording(own, told, path, chosen)


def run_of(folder: Path) -> RunInfo | None:
    """The run that a folder of recordings belongs to; None where it does not say."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        payload = private.read_small(folder / RUN_FILE, 8 << 20)
        return msgspec.json.decode(payload, type=RunInfo)
    return None


def _changed_ns(folder: Path) -> int:
    """When a file of the folder was last made, replaced or deleted; 0 where it is gone."""
    with contextlib.suppress(OSError):
        return os.stat(folder).st_mtime_ns
    return 0


def _refuse_void(segments: list[Segment], path: Path) -> None:
    if all(each.is_void for each in segments):
        size = sum(each.size_bytes for each in segments)
        raise NoSuchRun(f"{path} has {size:,} bytes, and nothing whole of a recording in them")


def _is_of(segment: Segment, pid: int | None) -> bool:
    if segment.head is not None:
        return segment.head.pid == pid
    return pid is None or segment.path.name.startswith(f"{pid}-")


__all__ = ["Recording", "read_recording", "run_of"]
