"""Records that only the scribe judges: a viewer has no place for them, and misses nothing."""

from __future__ import annotations

from tuimon.model.loop import LoopCalls, NormLayers, RankState, Reach, StateLoaded, Warned
from tuimon.model.samples import StartingWeights

EVIDENCE_ONLY = (LoopCalls, NormLayers, RankState, Reach, StartingWeights, StateLoaded, Warned)


def pass_over(record: object) -> None:
    """Not shown by itself; what it proves comes as a finding."""
