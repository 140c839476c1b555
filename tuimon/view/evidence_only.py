"""Who takes a record in a viewer: nobody, where only the scribe judges it, or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuimon.model.loop import LoopCalls, NormLayers, RankState, Reach, StateLoaded, Warned
from tuimon.model.samples import StartingWeights

EVIDENCE_ONLY = (LoopCalls, NormLayers, RankState, Reach, StartingWeights, StateLoaded, Warned)


def pass_over(record: object) -> None:
    """Not shown by itself; what it proves comes as a finding."""


def passed_to(*takers: Callable[[Any], None]) -> Callable[[Any], None]:
    """One taker of records that passes each to several."""

    def take(record: Any) -> None:
        for taker in takers:
            taker(record)

    return take
