"""What reaching into a run has set and found: breakpoints, looks at layers, copies of its state."""

from __future__ import annotations

from collections import deque

from tuimon.model.breakpoints import MAX_BREAKPOINTS, Breakpoint, Breakpoints
from tuimon.model.inspection import MAX_INSPECTIONS, InspectReply
from tuimon.model.snapshots import SnapshotState


class Reached:
    """Bounded; `breakpoints` by number, `inspections` oldest first, `snapshots` as they stand."""

    def __init__(self) -> None:
        self.breakpoints: tuple[Breakpoint, ...] = ()
        self.snapshots: SnapshotState | None = None
        self._inspections: deque[InspectReply] = deque(maxlen=MAX_INSPECTIONS)

    @property
    def inspections(self) -> tuple[InspectReply, ...]:
        """The newest answers."""
        return tuple(self._inspections)

    def add(self, record: Breakpoints | InspectReply | SnapshotState) -> None:
        """Take in one record."""
        if isinstance(record, Breakpoints):
            self.breakpoints = tuple(record.items[:MAX_BREAKPOINTS])
        elif isinstance(record, SnapshotState):
            self.snapshots = record
        else:
            self._inspections.append(record)
