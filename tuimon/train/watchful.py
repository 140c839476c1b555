"""Whether a run is still watched, and what becomes of requests once it is not.

Requests come in the control thread, everything else in the training thread; each field is written
in one piece.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tuimon.model.commands import RenewHold, Request
from tuimon.model.records import RUNNING, UNWATCHED, WATCH_OFF, CommandState, Record, Step
from tuimon.model.stages import stage_of
from tuimon.model.text import plain
from tuimon.train.boundary import say

if TYPE_CHECKING:
    from tuimon.train.session import Session

MAX_UNWRITTEN = 3  # steps between two looks, until what is published is no picture of the run
_MAX_CHARS = 300


class Watch:
    """Tells everybody that tuimon has switched itself off in a run, and lets nobody wait.

    Attributes:
        off: why the run is not watched; "" while it is.
        decide: who accepts and refuses while it is.
    """

    def __init__(self, session: Session) -> None:
        self.off = ""
        self.decide: Callable[[Request], CommandState] | None = None
        self._session = session
        self._unwritten = 0  # steps since the last look
        self._has_said = False

    @property
    def refusal(self) -> str:
        """Why nothing can be done."""
        return f"tuimon has switched its watch off there ({self.off}); the training goes on"

    def on_request(self, request: Request) -> CommandState:
        """Refuse where nothing would ever come of it."""
        if not self.off and self.decide is not None:
            return self.decide(request)
        if isinstance(request.command, RenewHold):  # many times a minute, and no news to anybody
            return stage_of(request, "accepted")
        state = stage_of(request, "refused", reason=self.refusal)
        self._session.publish(state)
        return state

    def part_failed(self, why: str) -> None:
        """A part of tuimon did not begin: before the first step there is nothing beside it."""
        if self._session.step is None:
            self.switch_off(why)
        else:
            text = f"a part of the watch is off: {why}"
            self._session.event("watch-failed", text, severity="warning")

    def switch_off(self, why: str) -> None:
        """Nothing more of the training will be seen."""
        session = self._session
        if self.off or not session.watched:
            return
        self.off = plain(why, _MAX_CHARS)
        text = "tuimon switched its watch off: the training goes on unseen"
        session.event(WATCH_OFF, text, severity="critical", detail=self.off)
        session.set_state(UNWATCHED)
        session.open_control()

    def could_not_write(self, record: Record, error: Exception) -> None:
        """A record is missing from the feed; without its steps a run is not watched."""
        what = type(record).__name__
        why = f"a record could not be published: {what}, {type(error).__name__}: {error}"
        if not self._has_said:
            self._has_said = True
            say(why)
        if type(record) is Step:
            self._unwritten += 1
            if self._unwritten == MAX_UNWRITTEN:
                self.switch_off(why)

    def look_again(self) -> None:
        """Steps are published, now and then: a watch that came back is no longer off."""
        if self.off and not self._unwritten:
            self.off = ""
            self._session.set_state(RUNNING)
        self._unwritten = 0
