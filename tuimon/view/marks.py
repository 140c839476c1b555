"""Where somebody reached into the training, for the charts and the heat map. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tuimon.model.commands import title_words
from tuimon.model.text import plain
from tuimon.view.frame import Frame
from tuimon.view.waits import BREAKPOINT

# Commands that change what follows, or that a person looks for again; a pause changes nothing.
_TELLING = frozenset(
    (
        "SetClip",
        "SetMaxNorm",
        "ScaleLr",
        "SetLr",
        "ReleaseLr",
        "SkipUpdate",
        "RollBack",
        "Undo",
        "SaveCheckpoint",
    )
)


class Mark(NamedTuple):
    """One place on the axis of steps."""

    step: int
    words: str


def marks(frame: Frame) -> list[Mark]:
    """What took effect, by step."""
    found = []
    for state in frame.commands:
        if state.state != "applied" or state.step is None or state.command not in _TELLING:
            continue
        words = state.words or title_words(state.command)
        if state.command != "SaveCheckpoint" and (state.old is not None or state.new is not None):
            words += f" ({state.old or '–'} → {state.new or '–'})"
        found.append(Mark(state.step, plain(words, 200)))
    found += [
        Mark(event.step, plain(event.text.removesuffix(f" at step {event.step:,}"), 200))
        for event in frame.events
        if event.kind == BREAKPOINT and event.step is not None
    ]
    return sorted(found)


def told(found: Sequence[Mark]) -> str:
    """Some marks in one line."""
    if not found:
        return ""
    more = f"  and {len(found) - 1:,} more" if len(found) > 1 else ""
    return f"{found[-1].words} at step {found[-1].step:,}{more}"
