"""For how long a training has been paused or held, by whom, and what that has cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuimon.model.units import duration_s, number
from tuimon.view.frame import HELD, PAUSED, Frame
from tuimon.view.incidents import HOLD

BREAKPOINT = "breakpoint"  # kinds of the events that a wait begins with
PAUSE = "pause"
_HOUR_S = 3600.0


def with_wait(frame: Frame, changed_s: float, now_s: float, beside: Sequence[str] = ()) -> Frame:
    """The frame with what is known of its wait.

    Args:
        frame: of a run in any state.
        changed_s: unix time of the last change of its state, 0 where that is not known.
        now_s: unix time, by the clock of this viewer.
        beside: what else a person must know.
    """
    if frame.state not in (PAUSED, HELD):
        return frame
    kinds = (HOLD,) if frame.state == HELD else (BREAKPOINT, PAUSE)
    began = next((each for each in reversed(frame.events) if each.kind in kinds), None)
    until_s = None if began is None else began.until_s
    detail = ""
    keys = "space resumes, . makes one step"
    lasting = "only resume or stop ends it"
    if began is not None and began.kind == BREAKPOINT:
        detail = f"{began.text}: {keys}{'' if until_s is not None else '; ' + lasting}"
    elif began is not None and began.kind == PAUSE:
        done = -1 if frame.step is None else frame.step  # single steps go on from where it began
        where = "" if began.step is None else f" before update {max(began.step, done + 1):,}"
        detail = f"paused {began.detail}{where}: {keys}; {lasting}"
    return replace(
        frame,
        state_detail="; ".join([detail, *beside]) if detail else frame.state_detail,
        waits_for_s=max(0.0, now_s - changed_s) if changed_s > 0 else None,
        hold_left_s=None if until_s is None else max(0.0, until_s - now_s),
    )


def waited(seconds: float | None, price_per_hour: float | None) -> str:
    """ "3m12s", and what it has cost where a price is known."""
    if seconds is None:
        return ""
    words = duration_s(float(int(seconds)))
    cost = cost_of(seconds, price_per_hour)
    return words if cost is None else f"{words} cost {number(cost, 3)}"


def cost_of(seconds: float | None, price_per_hour: float | None) -> float | None:
    """What a wait has cost so far; None without a price."""
    if seconds is None or price_per_hour is None:
        return None
    return seconds * price_per_hour / _HOUR_S
