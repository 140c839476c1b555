"""Where a recording is worth a look: the steps with something not finite, or told as critical.

What is told later of an earlier step stands at that step, so that the way on and the way back stop
at the same places. All that is recorded is read for it once, in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec

from tuimon.feed.codec import decode
from tuimon.feed.frames import Frame
from tuimon.feed.recording import Recording
from tuimon.model.records import AnyRecord, DeviceStats, Event, Loss, Step, Symptom, loss_of
from tuimon.model.text import plain
from tuimon.model.units import count
from tuimon.view.reel import PRIMARY

_TELLING = {cls.__struct_config__.tag for cls in (DeviceStats, Event, Loss, Step, Symptom)}
_PIECE = 64  # frames; a wide model has some of ten thousand norms


class Stops:
    """The steps of one recording to stop at. Belongs to one thread.

    Attributes:
        forward: whether the next one is wanted, and not the last one.
    """

    def __init__(self, recording: Recording) -> None:
        self.forward = True
        self._recording = recording
        self._kinds: dict[int, str] = {}  # by step, as it was told first
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
        return min((each for each in self._kinds if step is None or each > step), default=None)

    def before(self, step: int) -> int | None:
        """The last one before a step; None where there is none."""
        return max((each for each in self._kinds if each < step), default=None)

    def words(self, step: int | None) -> str:
        """What a person is told who has looked for one, and whom it leads to this step."""
        if step is None:
            return f"nothing critical {'after' if self.forward else 'before'} this step"
        return f"step {count(step)}: {self._kinds.get(step, '')}"

    def _note(self, frame: Frame) -> None:
        if frame.kind not in _TELLING:
            return
        try:
            record = decode(frame.payload)
        except (msgspec.DecodeError, ValueError):
            return  # counted where it is shown
        found = _found_in(record)
        if found is not None:
            self._kinds.setdefault(*found)


def _found_in(record: AnyRecord) -> tuple[int, str] | None:
    """The step that a person would want to look at for this record, and why."""
    if isinstance(record, Event | Symptom):
        if record.severity != "critical" or record.step is None:
            return None
        return record.step, plain(record.kind, 40)
    if isinstance(record, Loss):
        return record.step, "a loss that is not finite"
    if isinstance(record, Step | DeviceStats) and record.optimizer == PRIMARY:
        if not _is_finite(loss_of(record)):
            return record.step, "a loss that is not finite"
        if not _is_finite(record.grad_norm):
            return record.step, "a gradient norm that is not finite"
    return None


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
