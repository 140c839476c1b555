"""A place in a recording: the records from there on, where a step begins, and the next event.

Belongs to one thread. Reads only as far as it is asked to.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tuimon.feed.codec import decode
from tuimon.feed.frames import Frame
from tuimon.feed.history import History
from tuimon.feed.recording import Recording
from tuimon.model.ranks import RankRows
from tuimon.model.records import (
    AnyRecord,
    Event,
    Goodbye,
    Loss,
    Memory,
    Output,
    Step,
    Symptom,
    System,
)

PRIMARY = 0
_TIMED = (Event, System, Memory, Output, Goodbye, RankRows)
_TELLING = {cls.__struct_config__.tag for cls in (Event, Loss, Symptom)}


class Reel:
    """Reads a recording from one of its segments on.

    Attributes:
        segment: the one it began with.
        ordinal: of the newest record that was taken.
        is_over: everything that is recorded has been taken.
    """

    def __init__(self, recording: Recording, segment: int = 0) -> None:
        self.segment = segment
        self.ordinal = 0
        self.is_over = False
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
        return record

    def search(self, after_step: int | None) -> Iterator[int | None]:
        """Look ahead for what is told as critical; its step, after as many None as it takes."""
        for count, frame in enumerate(self._recording.frames(self.segment_now())):
            if frame.ordinal > self.ordinal and frame.kind in _TELLING:
                step = telling_step(frame)
                if step is not None and (after_step is None or step > after_step):
                    yield step
                    return
            if count % 256 == 255:
                yield None

    def segment_now(self) -> int:
        """The segment that the place lies in."""
        starts = [each.first for each in self._recording.segments]
        inside = [place for place, first in enumerate(starts) if first <= self.ordinal + 1]
        return max(inside, default=0)


def time_of(record: AnyRecord) -> float | None:
    """Unix time at which a record was written; None where it does not say."""
    if isinstance(record, Step | Loss):
        return record.time_ns / 1e9 if record.time_ns else None
    if isinstance(record, _TIMED):
        return record.time_s or None
    return None


def telling_step(frame: Frame) -> int | None:
    """The step of an event, loss or symptom that a person would want to look at."""
    try:
        record = decode(frame.payload)
    except (msgspec.DecodeError, ValueError):
        return None
    if isinstance(record, Event | Symptom):
        return record.step if record.severity == "critical" else None
    return record.step if isinstance(record, Loss) else None


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


def steps_of(recording: Recording) -> tuple[int | None, int | None]:
    """First and last step of the primary optimizer, as far as that is quickly known."""
    info = recording.info
    last = info.last_step if info is not None else None
    if last is None:
        heads = [each.head.step for each in recording.segments if each.head]
        last = max((step for step in heads if step is not None), default=None)
    first = recording.segments[0].checkpoint()
    return (first.totals.first_step if first else 0), last
