"""Causes in state that a training goes on with: what was not loaded, or not taken over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from tuimon.diagnose.continuing import Beginning
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.observing import observed
from tuimon.model.loop import MODULE, OPTIMIZER
from tuimon.model.units import number

JUMPED = 2.0  # times where the training stood: a fresh optimizer near a minimum does that at once
LOST = 3.0  # times, for the first loss itself
RAISED = 3.0  # times, a learning rate
TRAINED = 20  # updates that are worth going on from
ROW = 3  # losses whose median counts
_STATELESS = ("SGD", "ASGD", "Rprop")


class Resumed:
    """An optimizer, a schedule or a model that began anew although the training went on."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        found = run.loop.continuation
        for record in found.failed[:1]:
            detail = (
                f"none of the {record.unexpected} keys that were loaded into {record.kind} has a "
                f"name it knows, and it misses {record.missing}: its weights are as they were"
            )
            yield from_symptom("resume-state", observed(detail, evidence, record.step), 0.94, [])
        for begun in found.beginnings:
            told = next(_lost(begun), None)
            if told is not None:
                symptom = observed(told[0], evidence, begun.record.step)
                yield from_symptom("resume-state", symptom, told[1], [])


def _lost(begun: Beginning) -> Iterator[tuple[str, float]]:
    losses, record = begun.losses, begun.record
    if len(losses) < 2 * ROW:
        return
    has_model, has_state = MODULE in record.holds, OPTIMIZER in record.holds
    rose = _rise(begun)
    rate, before = record.rate, begun.loaded_rate or begun.rate_before
    faster = rate is not None and bool(before) and rate >= RAISED * (before or math.inf)
    words = f"the loss went from {number(losses[0])} to {number(losses[0] * rose)} at once"
    goes_on = has_model and (begun.before >= TRAINED or OPTIMIZER in begun.files)
    is_fresh = not has_state and record.entries == 0
    if goes_on and rose >= JUMPED and is_fresh and (record.kind not in _STATELESS or faster):
        rest = f", at a learning rate of {number(rate)} after {number(before)}" if faster else ""
        detail = f"trained weights were loaded and {record.kind} began with no state{rest}; {words}"
        yield detail, 0.92
    if has_state and faster and (rose >= JUMPED or has_model):
        yield (
            f"{record.kind} was loaded with a learning rate of {number(before)} and went on with "
            f"{number(rate)}: the schedule began anew" + (f"; {words}" if rose >= JUMPED else ""),
            0.9 if rose >= JUMPED else 0.75,
        )
    level = begun.level
    if has_state and not has_model and record.entries and level and losses[0] > LOST * level > 0:
        yield (
            f"{record.kind} was loaded with the state of a training that stood at "
            f"{number(level)}, but the model began at {number(losses[0])}: its weights were not "
            f"loaded",
            0.85,
        )


def _rise(begun: Beginning) -> float:
    """How many times higher than at first, or than before, the loss soon stood."""
    losses = begun.losses
    usual = max(losses[0], begun.level or 0.0)
    if not usual > 0:
        return 1.0
    rows = [median(losses[at : at + ROW]) for at in range(1, len(losses) - ROW + 1)]
    return max(rows, default=usual) / usual
