"""A place in a recording: the records from there on, and where a step begins.

Belongs to one thread. Reads only as far as it is asked to.
"""

from __future__ import annotations

import contextlib
from collections import deque

import msgspec

from tuimon.feed.codec import decode
from tuimon.feed.frames import Frame
from tuimon.feed.history import History
from tuimon.feed.recording import Recording
from tuimon.model.ranks import RankRows
from tuimon.model.records import (
    AnyRecord,
    DeviceStats,
    Event,
    Goodbye,
    Loss,
    Memory,
    Output,
    Step,
    System,
)

PRIMARY = 0
_STEP = Step.__struct_config__.tag
_OPTIMIZERS = 16  # that step in turn, at most
_TIMED = (Event, System, Memory, Output, Goodbye, RankRows)


class Reel:
    """Reads a recording from one of its segments on.

    Attributes:
        segment: the one it began with.
        ordinal: of the newest record that was taken.
        is_over: everything that is recorded has been taken.
        told: newest step that a record which was taken speaks of; -1 before there is one.
    """

    def __init__(self, recording: Recording, segment: int = 0) -> None:
        self.segment = segment
        self.ordinal = recording.segments[segment].first - 1
        self.is_over = False
        self.told = -1
        self._step = -1  # newest update of the primary optimizer
        self._recording = recording
        self._frames = recording.frames(segment)
        self._next: tuple[Frame, AnyRecord] | None = None

    def peek(self) -> AnyRecord | None:
        """The next record, left where it is; None at the end."""
        while self._next is None and not self.is_over:
            frame = next(self._frames, None)
            if frame is None:
                self.is_over = True
                break
            record = self._recording.decoded(frame)
            if record is not None:
                self._next = frame, record
        return None if self._next is None else self._next[1]

    def take(self) -> AnyRecord | None:
        """The next record; None at the end."""
        record = self.peek()
        if self._next is not None:
            self.ordinal = self._next[0].ordinal
            self._next = None
        if record is not None:
            self._follow(record)
        return record

    def read_on(self) -> None:
        """At the end, go on with what has been recorded since."""
        if self.is_over:
            place = self._recording.place_behind(self.ordinal)
            self._frames = self._recording.frames(place, self.ordinal)
            self.is_over = False

    def is_beyond(self, record: AnyRecord) -> bool:
        """Whether it is of a later step than the newest, or of one that the run goes on from."""
        step = tells_of(record)
        return step is not None and (step > self._step or isinstance(record, Step))

    def _follow(self, record: AnyRecord) -> None:
        step = tells_of(record)
        if step is None:
            return
        is_update = isinstance(record, Step)
        is_back = is_update and step <= self._step
        self.told = step if is_back else max(step, self.told)
        self._step = step if is_update else self._step

    def segment_now(self) -> int:
        """The segment that the place lies in."""
        return self._recording.place_behind(self.ordinal)


class Newest:
    """The newest update that is recorded. Reads what it has not read before, and no more.

    Attributes:
        step: of the primary optimizer; None before there is one.
    """

    def __init__(self, recording: Recording) -> None:
        self.step = recording.info.last_step if recording.info else None
        self._recording = recording
        self._ordinal = recording.segments[-1].first - 1
        self._extent = recording.extent
        if self.step is None:
            heads = [each.head.step for each in recording.segments if each.head]
            self.step = max((step for step in heads if step is not None), default=None)
            self._read()

    def has_moved(self) -> bool:
        """Look for more; whether there is any."""
        self._recording.look_again()
        extent = self._recording.extent
        if extent == self._extent:
            return False
        self._extent = extent
        self._read()
        return True

    def _read(self) -> None:
        place = self._recording.place_behind(self._ordinal)
        last: deque[Frame] = deque(maxlen=_OPTIMIZERS)
        for frame in self._recording.frames(place, self._ordinal):
            self._ordinal = frame.ordinal
            if frame.kind == _STEP:
                last.append(frame)
        for frame in last:
            with contextlib.suppress(msgspec.DecodeError, ValueError):  # counted where it is shown
                step = tells_of(decode(frame.payload))
                self.step = step if self.step is None else max(self.step, step or 0)


def time_of(record: AnyRecord) -> float | None:
    """Unix time at which a record was written; None where it does not say."""
    if isinstance(record, Step | Loss):
        return record.time_ns / 1e9 if record.time_ns else None
    if isinstance(record, _TIMED):
        return record.time_s or None
    return None


def tells_of(record: AnyRecord) -> int | None:
    """The update of the primary optimizer that a record speaks of; None where of none."""
    if isinstance(record, Step | DeviceStats) and record.optimizer != PRIMARY:
        return None
    step = getattr(record, "step", None)
    return step if isinstance(step, int) else None


def start_for(recording: Recording, step: int | None) -> tuple[int, History | None]:
    """Where to begin to read so that `step` is met soon: (segment, the run before it).

    None stands for the end.
    """
    for place in range(len(recording.segments) - 1, 0, -1):
        head = recording.segments[place].head
        if head is None or (step is not None and (head.step is None or head.step >= step)):
            continue
        history = recording.segments[place].checkpoint()
        if history is not None:
            return place, history
    return 0, recording.segments[0].checkpoint()


def first_step_of(recording: Recording) -> int | None:
    """The first update of the primary optimizer that is recorded."""
    history = recording.segments[0].checkpoint()
    return history.totals.first_step if history else 0
