"""Ranks of one training that hold different weights, or are about to."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.incidents import Detector
from tuimon.model.loop import LoopCalls, RankState
from tuimon.model.records import AnyRecord, Symptom

OFTEN = 5  # updates without a reduction: one may be a part of an accumulation that was cut short


class RankDivergence(Detector):
    """Weights that differ between ranks, and updates by gradients that were not reduced."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._said: set[str] = set()

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, RankState) and record.differing:
            others = ", ".join(map(str, record.differing))
            detail = f"after step {record.step} its weights differ from those of rank {others}"
            yield from self._say("weights", record.step, detail)
        elif isinstance(record, LoopCalls):
            for name in ("unsynced", "bypassed"):
                count = getattr(record, name)
                if count >= OFTEN and 2 * count >= record.train_updates + record.eval_updates:
                    detail = f"{count} updates used gradients that no rank had shared"
                    yield from self._say("gradients", record.first.get(name), detail)

    def _say(self, what: str, step: int | None, detail: str) -> Iterator[Symptom]:
        if what not in self._said:
            self._said.add(what)
            yield Symptom("rank-divergence", step, self._rank, "warning", detail)
