"""Causes of a loss that jumps and comes back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.scales import unsteady
from tuimon.diagnose.rules.stalling import is_adaptive
from tuimon.model.records import Symptom
from tuimon.model.units import number

FEW = 2  # spikes that built up: too few for a warning, and worth a thought
REMARK = 0.45


HELD = 0.5  # of the highest rate
WAVES = 200  # updates
SMOOTH = 0.9  # correlation of neighbours
PROMINENT = math.log(2.0)
MANY = 5
LEVELLED = math.log(1.25)  # a half that lies so much below the other is a training that learns


class Spiking:
    """Data that came and went, or an optimizer whose steps are too long for where it is."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        gradual = [s for s in evidence.symptoms if s.kind == "spike" and "lead_steps" in s.figures]
        if len(gradual) >= FEW and all(s.severity == "info" for s in gradual):
            cause = "opt-dynamics" if is_adaptive(evidence) else "lr-too-high"
            yield from_symptom(cause, gradual[0], REMARK, _leads(evidence))
        swings = _swings(evidence)
        if swings is not None and not gradual:
            yield from_symptom("opt-dynamics", swings, REMARK, [])
        for symptom in evidence.symptoms:
            if symptom.kind != "spike" or symptom.severity == "info":
                continue
            if "spikes" in symptom.figures:
                run = evidence.circumstances
                for verdict in unsteady(run.motion) if run is not None else ():
                    yield from_symptom("opt-dynamics", symptom, 0.92, [verdict.reason])
                cause = "opt-dynamics" if is_adaptive(evidence) else "lr-too-high"
                yield from_symptom(cause, symptom, 0.9, _leads(evidence))
            else:
                yield from_symptom("data-outlier", symptom, 0.9, [])


def _swings(evidence: Evidence) -> Symptom | None:
    """A loss that swings in waves under an adaptive optimizer at a rate that does not fall.

    What batches differ by is as likely to go up as down from one update to the next; waves of many
    updates are made by steps that overshoot and come back.
    """
    run = evidence.circumstances
    if run is None or not is_adaptive(evidence) or run.last_rate < HELD * run.top_rate:
        return None
    points = run.motion.losses.points[-WAVES:]
    losses = [loss for _, loss in points]
    whole = len(points) == WAVES and points[-1][0] - points[0][0] == WAVES - 1
    if not whole or min(losses) <= 0:
        return None
    logs = [math.log(loss) for loss in losses]
    middle = sum(logs) / len(logs)
    off = [each - middle for each in logs]
    power = sum(each * each for each in off)
    smooth = power > 0 and sum(a * b for a, b in pairwise(off)) >= SMOOTH * power
    half = len(logs) // 2
    falls = median(logs[half:]) < median(logs[:half]) - LEVELLED
    peaks = _peaks(logs)
    if not smooth or falls or peaks < MANY:
        return None
    detail = (
        f"in the last {WAVES} updates the loss rose and fell {peaks} times by a factor of two or "
        f"more, in waves of many updates, around {number(math.exp(middle))}"
    )
    return Symptom("oscillation", points[0][0], 0, "info", detail)


def _peaks(logs: list[float]) -> int:
    """How often a curve rose by `PROMINENT` from its lowest and fell by as much again."""
    count, low, high, rises = 0, logs[0], logs[0], True
    for each in logs:
        low, high = min(low, each), max(high, each)
        if rises and each < high - PROMINENT:
            count, rises, low = count + 1, False, each
        elif not rises and each > low + PROMINENT:
            rises, high = True, each
    return count


def _leads(evidence: Evidence) -> list[str]:
    leads = [s.figures["lead_steps"] for s in evidence.symptoms if "lead_steps" in s.figures]
    if not leads:
        return []
    return [f"the gradient norm left its band up to {max(leads):.0f} steps before the loss did"]
