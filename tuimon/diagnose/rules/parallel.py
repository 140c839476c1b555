"""Causes in a training that several processes make together."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.observing import observed
from tuimon.model.loop import RankState

OFTEN = 5  # updates
MOST = 0.5  # of the updates
SAME = 3  # looks at batches of other ranks


class Desync:
    """Ranks that drift apart, or that are given the same data."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        calls, ranks = run.loop.calls, run.loop.ranks
        differing = [each for each in ranks if each.differing]
        wrapped = any(each.is_wrapped for each in differing)
        if wrapped or len(differing) >= SAME:
            first = next((each for each in differing if each.same_gradient), differing[0])
            confidence = 0.96 if wrapped or first.same_gradient else 0.75
            detail = (
                f"weights of rank {first.rank} differ from those of rank "
                f"{', '.join(map(str, first.differing))} after step {first.step}"
            )
            symptom = observed(detail, evidence, first.step)
            yield from_symptom("dist-desync", symptom, confidence, _same(first))
        total = (calls.train_updates + calls.eval_updates) if calls else 0
        for name, words in _WAYS:
            count = getattr(calls, name, 0)
            if calls is not None and count >= OFTEN and count >= MOST * total:
                step = calls.first.get(name, 0)
                detail = f"{words} in {count:,} updates, first at step {step}"
                yield from_symptom("dist-desync", observed(detail, evidence, step), 0.93, [])
        same = [each for each in ranks if each.same_batch]
        if len(same) >= SAME:
            first = same[0]
            detail = (
                f"rank {first.rank} and rank {', '.join(map(str, first.same_batch))} were given "
                f"the same batch at {len(same)} of the steps that were compared"
            )
            yield from_symptom("dist-desync", observed(detail, evidence, first.step), 0.85, [])


def _same(state: RankState) -> list[str]:
    if not state.same_gradient:
        return []
    return ["their gradients were the same: they are replicas that did not begin alike"]


_WAYS = (
    (
        "unsynced",
        "the last forward of the data-parallel model did not announce a reduction of gradients",
    ),
    ("bypassed", "the data-parallel wrapper was passed by: gradients were not reduced"),
)
