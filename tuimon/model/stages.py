"""A stage in the life of a request as the record that tells of it, for whoever answers or waits."""

from __future__ import annotations

from tuimon.model.commands import Request
from tuimon.model.ledger import asked_of
from tuimon.model.records import CommandState


def stage_of(
    request: Request,
    state: str,
    *,
    reason: str = "",
    step: int | None = None,
    old: str | None = None,
    new: str | None = None,
) -> CommandState:
    """What has become of a request.

    Args:
        request: who asked for what, and when.
        state: "sent", "accepted", "refused", "applied" or "expired".
        reason: why it was refused or has expired.
        step: index of the update before which this happened.
        old: what was in force before, in words.
        new: what is in force now, in words.
    """
    return CommandState(
        id=request.id,
        command=request.command.title,
        state=state,
        by=request.by,
        asked_at_s=request.asked_at_s,
        step=step,
        old=old,
        new=new,
        reason=reason,
        words=request.command.words,
        asked=asked_of(request.command),
    )
