"""Whether the run is to be held before a bad update, as its ledger of commands tells."""

from __future__ import annotations

from tuimon.model.commands import ArmHold, DisarmHold
from tuimon.view.frame import Frame

_ARM, _DISARM = ArmHold.__name__, DisarmHold.__name__
_TAKEN = ("sent", "accepted", "applied")


def is_armed(frame: Frame) -> bool:
    """Whether the newest command about it asked for a hold."""
    for state in reversed(frame.commands):
        if state.command in (_ARM, _DISARM) and state.state in _TAKEN:
            return state.command == _ARM
    return False
