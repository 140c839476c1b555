"""A training that goes on from saved state: what was loaded, and what the loss did then."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from tuimon.model.loop import BEGINS, FILE, MODULE, OPTIMIZER, StateLoaded
from tuimon.model.records import AnyRecord, Step, loss_of

BEFORE = 16  # losses that say where a training stood
AFTER = 24  # losses after an optimizer began that say what became of it
FIRST = 3  # of them: the weights have hardly moved
MAX_BEGINNINGS = 16


@dataclass
class Beginning:
    """The first update of an optimizer.

    Attributes:
        record: what was known then.
        number: how many optimizers had begun before.
        level: median loss of the newest updates of any earlier optimizer; None without one.
        before: how many updates those had made.
        rate_before, kind_before: of the newest of those.
        losses: of its own first updates.
        files: kinds of state in files that were read before.
        loaded_rate: learning rate that was loaded into it.
    """

    record: StateLoaded
    number: int = 0
    level: float | None = None
    before: int = 0
    rate_before: float | None = None
    kind_before: str = ""
    losses: list[float] = field(default_factory=list)
    files: frozenset[str] = frozenset()
    loaded_rate: float | None = None


class Continuation:
    """Beginnings of optimizers, with the losses around them.

    Attributes:
        beginnings: in order.
        failed: modules of whose given keys none was taken over, as they were loaded.
    """

    def __init__(self) -> None:
        self.beginnings: list[Beginning] = []
        self.failed: list[StateLoaded] = []
        self._newest: dict[int, Beginning] = {}
        self._recent: deque[float] = deque(maxlen=BEFORE)
        self._updates = 0
        self._rate: float | None = None
        self._files: set[str] = set()
        self._rates: dict[int | None, float] = {}

    def see(self, record: AnyRecord) -> None:
        """Take one record in."""
        if isinstance(record, StateLoaded):
            self._on_state(record)
        elif isinstance(record, Step):
            self._on_step(record)

    def _on_state(self, record: StateLoaded) -> None:
        if record.what == FILE:
            self._files |= set(record.holds)
        elif record.what == MODULE:
            if record.matched == 0 and record.unexpected and record.missing:
                self.failed = [*self.failed[-7:], record]
        elif record.what == OPTIMIZER and record.rate is not None:
            self._rates[record.optimizer] = record.rate
        elif record.what == BEGINS and len(self.beginnings) < MAX_BEGINNINGS:
            begun = Beginning(
                record,
                number=len(self.beginnings),
                level=median(self._recent) if self._recent else None,
                before=self._updates,
                rate_before=self._rate,
                kind_before=self.beginnings[-1].record.kind if self.beginnings else "",
                files=frozenset(self._files),
                loaded_rate=self._rates.get(record.optimizer),
            )
            self.beginnings.append(begun)
            self._newest[record.optimizer or 0] = begun

    def _on_step(self, record: Step) -> None:
        loss = loss_of(record)
        self._updates += 1
        if record.lrs and record.lrs[0] is not None:
            self._rate = record.lrs[0]
        if loss is None or not math.isfinite(loss):
            return
        begun = self._newest.get(record.optimizer)
        if begun is not None and len(begun.losses) < AFTER:
            begun.losses.append(loss)
        self._recent.append(loss)
