"""What the keys of a recording do to its playback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from tuimon.view.frame import END

SEEK_SHARE = 0.05  # of the whole run, for one key
STEP_WORDS = ("go to step", "a number, or end; enter goes  esc leaves")


@runtime_checkable
class Playback(Protocol):
    """A recording that is played."""

    def toggle(self) -> None:
        """Play or pause."""
        ...

    def change_speed(self, factor: float) -> None:
        """Let time go faster or slower."""
        ...

    def one_step(self) -> None:
        """Go on by one update, and stay there."""
        ...

    def go_by(self, share: float) -> None:
        """Go back or on by a share of the whole run."""
        ...

    def go_to(self, step: int) -> None:
        """Show the run as it was after this step; -1 is the end."""
        ...

    def go_to_event(self, *, forward: bool) -> None:
        """Go to the next or the last critical thing."""
        ...

    def notice(self) -> str:
        """What there is to say about the last key; once."""
        ...


STEERING: dict[str, Callable[[Playback], None]] = {
    "play": lambda playback: playback.toggle(),
    "play_step": lambda playback: playback.one_step(),
    "slower": lambda playback: playback.change_speed(0.5),
    "faster": lambda playback: playback.change_speed(2.0),
    "go_back": lambda playback: playback.go_by(-SEEK_SHARE),
    "go_on": lambda playback: playback.go_by(SEEK_SHARE),
    "next_event": lambda playback: playback.go_to_event(forward=True),
    "last_event": lambda playback: playback.go_to_event(forward=False),
}


def steer(playback: Playback, name: str) -> None:
    """Do what a key of the table does."""
    STEERING[name](playback)


def go_to_typed(playback: Playback | None, typed: str | None) -> str:
    """Go to the step that a person has typed: a number, or the end; why not, where it is none."""
    words = (typed or "").strip().replace(",", "").replace("_", "").lower()
    if playback is None or not words:
        return ""
    if words in ("end", "last"):
        playback.go_to(END)
    elif words.isdecimal() and len(words) < 16:
        playback.go_to(int(words))
    else:
        return "a step is a number, or: end"
    return ""
