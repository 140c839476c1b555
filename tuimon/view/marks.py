"""What happened to the training at which step, for the charts and the heat map. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tuimon.feed import milestones
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
COMMAND, EVENT = "command", "event"
EPOCH, RATE = milestones.EPOCH, milestones.RATE
# Where several meet in one column the last of these is shown.
ORDER = (EPOCH, RATE, COMMAND, EVENT)
_TOLD_EVENTS = (BREAKPOINT, "resumed")


class Mark(NamedTuple):
    """One place on the axis of steps."""

    step: int
    words: str
    kind: str = COMMAND


class Marks:
    """The marks of the newest frame that was asked about: made anew only when there are others."""

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._found: list[Mark] = []

    def of(self, frame: Frame) -> list[Mark]:
        """By step."""
        seen = (frame.commands, frame.events, frame.milestones)
        if len(self._seen) != 3 or any(a is not b for a, b in zip(seen, self._seen, strict=True)):
            self._seen, self._found = seen, marks(frame)
        return self._found


def marks(frame: Frame) -> list[Mark]:
    """What took effect, what went wrong, where epochs begin and where rates jump, by step."""
    found = []
    for state in frame.commands:
        if state.state != "applied" or state.step is None or state.command not in _TELLING:
            continue
        words = state.words or title_words(state.command)
        if state.command != "SaveCheckpoint" and (state.old is not None or state.new is not None):
            words += f" ({state.old or '–'} → {state.new or '–'})"
        found.append(Mark(state.step, plain(words, 200)))
    for event in frame.events:
        if event.step is None:
            continue
        if event.first_step is not None and event.first_step < event.step:
            words = f"from here to step {event.step - 1:,} undone by the roll back"
            found.append(Mark(event.first_step, f"{words} at step {event.step:,}", EVENT))
        if event.severity in ("warning", "critical") or event.kind in _TOLD_EVENTS:
            words = plain(event.text.removesuffix(f" at step {event.step:,}"), 200)
            found.append(Mark(event.step, words, EVENT))
    found += [Mark(step, plain(words, 200), kind) for step, kind, words in frame.milestones]
    return sorted(found)


def worst(found: Sequence[Mark]) -> Mark:
    """The one that is shown where several meet; the newest of its kind."""
    return max(found, key=lambda mark: (ORDER.index(mark.kind), mark.step))


def told(found: Sequence[Mark]) -> str:
    """Some marks in one line."""
    if not found:
        return ""
    more = f"  and {len(found) - 1:,} more" if len(found) > 1 else ""
    shown = worst(found)
    return f"{shown.words} at step {shown.step:,}{more}"
