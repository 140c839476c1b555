"""How the ranks of a run stand beside each other, as the scribe of their host sees them.

Wire rules are those of `model.records`.
"""

from __future__ import annotations

import msgspec

from tuimon.model.wire import Record

MAX_ROWS = 1024

STARTING = "starting"  # no update so far; else a word of `records.STATE_NAMES`


class RankRow(msgspec.Struct, frozen=True, array_like=True):
    """One rank.

    Attributes:
        state: "starting", "running", "paused", "held", "unwatched" or "gone".
        step: index of its newest update; None before the first.
        loss, grad_norm: of that update, or of the one before it that `figures_step` names; None
            where they were not measured.
        step_s: wall time of an update, the median of the newest ones.
        own_s: its own part of that before the backward: waits for data and the forward.
        updated_s: unix time of its newest update.
        differs: ranks whose weights differed from its own when they were last compared.
        straggles: its own part has been the longest for a while: the others wait for it.
        bad: step and what of it was the first that was not finite; `bad_step` None while all is.
        exit: how it ended, in words; "" while it goes on.
        figures_step: of `loss` and `grad_norm`, where they come from a device and are older than
            the newest update.
    """

    rank: int
    pid: int = 0
    state: str = STARTING
    step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_s: float | None = None
    own_s: float | None = None
    updated_s: float | None = None
    differs: list[int] = []
    straggles: bool = False
    bad: str = ""
    bad_step: int | None = None
    exit: str = ""
    figures_step: int | None = None

    @property
    def at(self) -> int | None:
        """The step that loss and gradient norm are of."""
        return self.step if self.figures_step is None else self.figures_step


class RankRows(Record, frozen=True, array_like=True, tag=80):
    """All ranks of this host, by rank.

    Attributes:
        world_size: ranks of the job on all hosts.
        first_bad: the rank whose own loss, or operation, was the first that was not finite.
    """

    time_s: float  # unix time
    rows: list[RankRow] = []
    world_size: int = 1
    first_bad: int | None = None
