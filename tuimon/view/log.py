"""The event log and the output of the training: bounded, and safe for a terminal."""

from __future__ import annotations

from collections import deque

import msgspec

from tuimon.feed.output import PROGRESS
from tuimon.model.causes import SYMPTOMS
from tuimon.model.records import WATCH_OFF, Event, Output
from tuimon.model.text import plain

MAX_EVENTS = 2000
MAX_OUTPUT = 5000
# Critical events closer than this belong to one incident: what follows a NaN is not news.
INCIDENT_STEPS = 50


class Log:
    """Newest events and lines of output, oldest first.

    Attributes:
        alert: the most telling critical event of the newest incident.
        watch_off: why tuimon has switched itself off in the training; "" where it has not.
        dropped: older entries that no longer fit, by reason.
    """

    def __init__(self) -> None:
        self.alert: Event | None = None
        self.watch_off = ""
        self._incident_step: int | None = None
        self.dropped: dict[str, int] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._output: deque[Output] = deque(maxlen=MAX_OUTPUT)
        self._frozen_events: tuple[Event, ...] = ()
        self._frozen_output: tuple[Output, ...] | None = ()

    @property
    def events(self) -> tuple[Event, ...]:
        if len(self._frozen_events) != len(self._events):
            self._frozen_events = tuple(self._events)
        return self._frozen_events

    @property
    def output(self) -> tuple[Output, ...]:
        if self._frozen_output is None:
            self._frozen_output = tuple(self._output)
        return self._frozen_output

    def add_event(self, event: Event) -> None:
        """Add one event; a critical one becomes the alert."""
        safe = msgspec.structs.replace(
            event,
            kind=plain(event.kind, 60),
            text=plain(event.text),
            detail=plain(event.detail, 8000),
        )
        if len(self._events) == MAX_EVENTS:
            self._drop("older events")
        self._events.append(safe)
        self._frozen_events = ()
        if safe.kind == WATCH_OFF:
            self.watch_off = safe.detail
        if safe.severity == "critical":
            self._alarm(safe)

    def add_output(self, line: Output) -> None:
        """Add one line that the training wrote; a line that is still written gives way to it."""
        if self._output and self._output[-1].stream == PROGRESS:
            self._output.pop()
        elif len(self._output) == MAX_OUTPUT:
            self._drop("older output")
        self._output.append(msgspec.structs.replace(line, text=plain(line.text)))
        self._frozen_output = None

    def _alarm(self, event: Event) -> None:
        """One incident has one headline: the first bad step, there the loss before the rest."""
        latest, self._incident_step = self._incident_step, event.step
        same = (
            latest is not None
            and event.step is not None
            and abs(event.step - latest) <= INCIDENT_STEPS
        )
        if not same or self.alert is None or _telling(event) < _telling(self.alert):
            self.alert = event

    def _drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


def _telling(event: Event) -> tuple[int, int]:
    """Step, then the place in `SYMPTOMS`, which go from where a NaN shows to where it ends."""
    kind = SYMPTOMS.index(event.kind) if event.kind in SYMPTOMS else len(SYMPTOMS)
    return event.step or 0, kind
