"""The breakpoints of a run as they stand, for every reader.

Wire rules are those of `model.records`.
"""

from __future__ import annotations

import msgspec

from tuimon.model.wire import Record

MAX_BREAKPOINTS = 32  # each is judged at every update


class Breakpoint(msgspec.Struct, frozen=True, array_like=True):
    """One condition that is waited for.

    Attributes:
        number: what it is cleared by; never given out twice in a run.
        condition: as `conditions.written` says it.
        by: who asked.
        hits: how often it has become true.
        last_step: the update at which it did so last; None before the first time.
    """

    number: int
    condition: str
    by: str = ""
    hits: int = 0
    last_step: int | None = None


class Breakpoints(Record, frozen=True, array_like=True, tag=70):
    """All that are set, by number; published when one is set, hit or cleared."""

    items: list[Breakpoint] = []
