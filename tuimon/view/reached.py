"""What reaching into a run has set and found: its breakpoints, and looks at layers."""

from __future__ import annotations

from collections import deque

from tuimon.model.breakpoints import MAX_BREAKPOINTS, Breakpoint, Breakpoints
from tuimon.model.inspection import MAX_INSPECTIONS, InspectReply


class Reached:
    """Bounded; `breakpoints` by number, `inspections` oldest first."""

    def __init__(self) -> None:
        self.breakpoints: tuple[Breakpoint, ...] = ()
        self._inspections: deque[InspectReply] = deque(maxlen=MAX_INSPECTIONS)

    @property
    def inspections(self) -> tuple[InspectReply, ...]:
        """The newest answers."""
        return tuple(self._inspections)

    def add(self, record: Breakpoints | InspectReply) -> None:
        """Take in one record."""
        if isinstance(record, Breakpoints):
            self.breakpoints = tuple(record.items[:MAX_BREAKPOINTS])
        else:
            self._inspections.append(record)
