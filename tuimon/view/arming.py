"""Whether the run is to be held before a bad update, as its ledger of commands tells."""

from __future__ import annotations

from tuimon.model.commands import ArmHold, DisarmHold
from tuimon.model.records import NON_FINITE
from tuimon.view.frame import Frame

_ARM, _DISARM = ArmHold.__name__, DisarmHold.__name__
_TAKEN = ("sent", "accepted", "applied")


def is_armed(frame: Frame) -> bool:
    """Whether the newest command about it asked for a hold."""
    for state in reversed(frame.commands):
        if state.command in (_ARM, _DISARM) and state.state in _TAKEN:
            return state.command == _ARM
    return False


def passes_now(frame: Frame) -> bool:
    """Whether the updates pass all the same: it holds at the first bad one of a row of them."""
    return frame.heat is not None and bool((frame.heat.latest_flags() & NON_FINITE).any())
