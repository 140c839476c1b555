"""What ranks write into the job's store for each other: typed, checked, never evaluated."""

from __future__ import annotations

import msgspec

from tuimon.model.commands import Request


class Here(msgspec.Struct, frozen=True):
    """One rank takes part."""

    host: str
    pid: int
    start_ticks: int


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """From any rank to rank 0.

    Attributes:
        request: a command for all of them.
        lease_s: what is armed by it, or by an earlier one, lasts so long without a sign of life.
        limit_s: a pause ends by itself after so long; 0 never.
        held: why the training is to be held; "" for a command.
        leaving: why this rank agrees about nothing any more.
    """

    request: Request | None = None
    lease_s: float = 0.0
    limit_s: float = 0.0
    held: str = ""
    leaving: str = ""


class Proposal(msgspec.Struct, frozen=True, omit_defaults=True):
    """From rank 0 to all: a command, or the end of all agreements."""

    request: Request | None = None
    held: str = ""
    ending: str = ""


class Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    """A promise not to pass `place` before the outcome is known, or why it cannot be done."""

    place: int
    reason: str = ""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where all carry it out, or why nobody does."""

    place: int = 0
    reason: str = ""


class Vote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one rank found when it came to it.

    Attributes:
        reason: why it cannot be done here.
        token: what must be the same on all ranks.
    """

    reason: str = ""
    token: str = ""
