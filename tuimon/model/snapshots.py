"""How a run stands with the copies of its healthy state, and what they cost, for every reader.

Wire rules are those of `model.records`.
"""

from __future__ import annotations

from tuimon.model.wire import Record


class SnapshotState(Record, frozen=True, array_like=True, tag=73):
    """What is kept to go back to; published as copies are taken, once a second at most.

    Attributes:
        every: updates from one copy to the next.
        step: the update after which the healthy state was taken; None while there is none.
        took_s: host seconds of a copy, the median of the newest; None before the first.
        held_bytes: memory of all copies.
        step_s: host seconds of an update that a copy follows, the median of the newest.
        unable: why no more are taken; "" while they are.
    """

    every: int
    step: int | None = None
    took_s: float | None = None
    held_bytes: int | None = None
    step_s: float | None = None
    unable: str = ""

    @property
    def share_frac(self) -> float | None:
        """What a copy costs as a share of the step that it follows; None while not known."""
        return self.took_s / self.step_s if self.took_s is not None and self.step_s else None
