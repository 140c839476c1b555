"""What viewers are told about a command: applied, refused, and the line in the event log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tuimon.model import commands
from tuimon.model.records import CommandState
from tuimon.model.stages import stage_of

if TYPE_CHECKING:
    from tuimon.train.observer import Observer


class HeldBack:
    """What would be told about a command, until the other ranks have been heard.

    Attributes:
        state: what became of it here.
    """

    def __init__(self) -> None:
        self.state: CommandState | None = None
        self.events: list[Callable[[], None]] = []


class Answers:
    """Told by the training thread; `refuse` may be called by any.

    Attributes:
        held_back: kept here instead of being told; None to tell it.
    """

    def __init__(self, observer: Observer) -> None:
        self.held_back: HeldBack | None = None
        self._told_by = observer

    def applied(
        self,
        request: commands.Request,
        old: str | None,
        new: str | None,
        *,
        step: int | None = None,
        reason: str = "",
    ) -> None:
        """Publish that a command takes effect, at the coming update if no other is named."""
        self._publish(request, "applied", old=old, new=new, step=step, reason=reason)

    def refuse(self, request: commands.Request, reason: str) -> None:
        """Publish that an accepted command could not be carried out after all."""
        self._publish(request, "refused", reason=reason)

    def _publish(
        self,
        request: commands.Request,
        state: str,
        *,
        old: str | None = None,
        new: str | None = None,
        reason: str = "",
        step: int | None = None,
    ) -> None:
        step = self._told_by.roster.next_step() if step is None else step
        told = stage_of(request, state, reason=reason, step=step, old=old, new=new)
        if self.held_back is not None:
            self.held_back.state = told
        else:
            self.tell(told)

    def tell(self, state: CommandState) -> None:
        """Let viewers know what became of a command."""
        self._told_by.session.publish(state)
        if self._told_by.repeating is not None:
            self._told_by.repeating.on_state(state)

    def event(
        self,
        kind: str,
        text: str,
        request: commands.Request,
        *,
        severity: str = "info",
        step: int | None = None,
    ) -> None:
        """Publish a line about a command, at the coming update if no other is named."""
        session = self._told_by.session
        step = self._told_by.roster.next_step() if step is None else step
        detail = f"by {request.by}"
        tell = partial(session.event, kind, text, severity=severity, detail=detail, step=step)
        if self.held_back is not None:
            self.held_back.events.append(tell)
        else:
            tell()
