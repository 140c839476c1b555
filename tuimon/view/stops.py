"""Where a recording is worth a look: where something not finite begins, or is told as critical.

What goes on from step to step is one stop, its beginning. What is told later of an earlier step
stands at that step, so that the way on and the way back stop at the same places. All that is
recorded is read for it once, in pieces.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import msgspec

from tuimon.feed.codec import decode
from tuimon.feed.frames import Frame
from tuimon.feed.recording import Recording
from tuimon.model.records import AnyRecord, DeviceStats, Event, Loss, Step, Symptom, loss_of
from tuimon.model.text import plain
from tuimon.model.units import count
from tuimon.view.reel import PRIMARY

_TELLING = {cls.__struct_config__.tag for cls in (DeviceStats, Event, Loss, Step, Symptom)}
_NOT_FINITE = "a loss that is not finite", "a gradient norm that is not finite"
OF_AN_INCIDENT = ("non-finite", "data-nonfinite", "autopsy")  # events and symptoms that tell of it
_PIECE = 64  # frames; a wide model has some of ten thousand norms


@dataclass
class _Stretch:
    """Steps in a row at which trouble of one kind was seen, and how it was told at the first."""

    first: int
    last: int
    words: str


class Stops:
    """The steps of one recording to stop at. Belongs to one thread.

    Attributes:
        forward: whether the next one is wanted, and not the last one.
    """

    def __init__(self, recording: Recording) -> None:
        self.forward = True
        self._recording = recording
        self._stretches: dict[str, list[_Stretch]] = {}  # by kind, each by step
        self._ordinal = 0  # of the newest record that was read
        self._reading: Iterator[None] | None = None

    @property
    def is_looked_for(self) -> bool:
        """Whether somebody waits for the next or the last one."""
        return self._reading is not None

    def look(self, *, forward: bool) -> None:
        """Begin to look for the next or the last one; `read_on` does it."""
        self.forward = forward
        if self._reading is None:
            self._reading = self._unread()

    def give_up(self) -> None:
        """Nobody waits any more; what was read is kept."""
        self._reading = None

    def read_on(self, is_late: Callable[[], bool]) -> bool:
        """Read until it is late; whether everything has been read, which ends the looking."""
        for _ in self._reading or ():
            if is_late():
                return False
        self._reading = None
        return True

    def _unread(self) -> Iterator[None]:
        """Read what has been recorded since; pauses after every piece."""
        place = self._recording.place_behind(self._ordinal)
        for seen, frame in enumerate(self._recording.frames(place, self._ordinal), 1):
            self._ordinal = frame.ordinal
            self._note(frame)
            if seen % _PIECE == 0:
                yield

    def after(self, step: int | None) -> int | None:
        """The first one behind a step; None where there is none."""
        firsts = (each.first for each in self._all())
        return min((each for each in firsts if step is None or each > step), default=None)

    def before(self, step: int) -> int | None:
        """The last one before a step; None where there is none."""
        return max((each.first for each in self._all() if each.first < step), default=None)

    def words(self, step: int | None) -> str:
        """What a person is told who has looked for one, and whom it leads to this step."""
        if step is None:
            return f"nothing critical {'after' if self.forward else 'before'} this step"
        words = dict.fromkeys(each.words for each in self._all() if each.first == step)
        return f"step {count(step)}: {', '.join(words)}"

    def _all(self) -> Iterator[_Stretch]:
        return chain.from_iterable(self._stretches.values())

    def _note(self, frame: Frame) -> None:
        if frame.kind not in _TELLING:
            return
        try:
            record = decode(frame.payload)
        except (msgspec.DecodeError, ValueError):
            return  # counted where it is shown
        found = _found_in(record)
        if found is not None:
            step, words = found
            is_one = words in _NOT_FINITE or words.startswith(OF_AN_INCIDENT)
            kind = _NOT_FINITE[0] if is_one else words
            _take_in(self._stretches.setdefault(kind, []), step, words)


def _take_in(stretches: list[_Stretch], step: int, words: str) -> None:
    """Make a step part of the stretch that it is in or beside, or begin one."""
    place = bisect_right(stretches, step, key=lambda each: each.first)
    before = stretches[place - 1] if place else None
    after = stretches[place] if place < len(stretches) else None
    if before is not None and step <= before.last + 1:
        before.last = max(before.last, step)
        if after is not None and after.first <= before.last + 1:
            before.last = max(before.last, after.last)
            del stretches[place]
    elif after is not None and after.first == step + 1:
        after.first, after.words = step, words
    else:
        stretches.insert(place, _Stretch(step, step, words))


def _found_in(record: AnyRecord) -> tuple[int, str] | None:
    """The step that a person would want to look at for this record, and why."""
    if isinstance(record, Event | Symptom):
        if record.severity != "critical" or record.step is None:
            return None
        return record.step, plain(record.kind, 40)
    if isinstance(record, Loss):
        return record.step, _NOT_FINITE[0]
    if isinstance(record, Step | DeviceStats) and record.optimizer == PRIMARY:
        if not _is_finite(loss_of(record)):
            return record.step, _NOT_FINITE[0]
        if not _is_finite(record.grad_norm):
            return record.step, _NOT_FINITE[1]
    return None


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
