"""The commands that anybody sent to the run, each with its newest state."""

from __future__ import annotations

import msgspec

from tuimon.model.commands import RenewHold
from tuimon.model.records import CommandState
from tuimon.model.text import plain

MAX_COMMANDS = 500
SENT = "sent"  # a viewer's own stage, before the trainer has answered
_STAGES = {SENT: 0, "accepted": 1, "refused": 2, "applied": 2, "expired": 2}
_FINAL = 2
_SIGN_OF_LIFE = RenewHold.__name__  # many times a minute, and nothing that anybody asked for


class Ledger:
    """Newest state per command id, oldest command first, bounded."""

    def __init__(self) -> None:
        self._states: dict[str, CommandState] = {}
        self.newest: tuple[CommandState, ...] = ()

    def add(self, record: CommandState) -> None:
        """Take in one stage. Stages may arrive by two ways; a command never goes back."""
        if record.command == _SIGN_OF_LIFE:
            return
        known = self._states.get(record.id)
        if known is not None and _stage(record) < _stage(known):
            return
        if known is not None:
            record = msgspec.structs.replace(
                record,
                by=record.by or known.by,
                asked_at_s=record.asked_at_s or known.asked_at_s,
                words=record.words or known.words,
            )
        elif len(self._states) >= MAX_COMMANDS:
            del self._states[next(iter(self._states))]
        self._states[record.id] = _safe(record)
        self.newest = tuple(self._states.values())

    def expire(self, reason: str) -> None:
        """Nothing that is pending can be applied any more."""
        for state in self.newest:
            if _stage(state) < _FINAL:
                ended = msgspec.structs.replace(state, state="expired", reason=reason)
                self._states[state.id] = ended
        self.newest = tuple(self._states.values())


def _stage(record: CommandState) -> int:
    return _STAGES.get(record.state, 1)


def _safe(record: CommandState) -> CommandState:
    return msgspec.structs.replace(
        record,
        command=plain(record.command, 40),
        words=plain(record.words, 200),
        state=plain(record.state, 20),
        by=plain(record.by, 200),
        old=None if record.old is None else plain(record.old),
        new=None if record.new is None else plain(record.new),
        reason=plain(record.reason),
    )
