"""Learning rates that were spent too early, turned round, or lost what had been learned."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.motion import Motion
from tuimon.diagnose.rules.concluding import Verdict, from_symptom, from_verdict
from tuimon.diagnose.rules.rates import NEGATIVE, SPENT
from tuimon.diagnose.rules.scales import oversized
from tuimon.model.records import Symptom
from tuimon.model.units import number

LONG = 60  # updates of a run whose schedule is judged
# A step schedule at 20, 40 and 60 % spends 90 % of its rates in the first 20 % of the updates, an
# exponential one down to a thousandth 75 %, a cosine 31 %.
EARLY, NEARLY_ALL = 0.2, 0.95
UNDONE = 0.1  # of the first loss: below it the training has come somewhere
STOPPED = 0.8  # of the loss at the end of that part: nothing was learned after it
BLOCK = 8  # points of the history of losses in one median
LOST = 3.0  # times the best block
HIGH_AGAIN = 0.3  # of the first loss
# A game, a curriculum or a growing weight of a loss raises it step by step; a collapse is abrupt,
# and the gradient shows it.
ABRUPT = 2  # blocks from low to high
STEEPER = 10.0  # times the gradient norms before


class Schedules:
    """Reads the history of rates against that of losses."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None or run.updates < LONG:
            return
        early = run.loop.warned.get("scheduler-order")
        if early and not run.motion.is_scaled:  # a skipped first update brings the same warning
            detail = "the scheduler stepped before the first update: each rate comes one step early"
            symptom = Symptom("slow-progress", 0, 0, "warning", detail)
            yield from_symptom("lr-schedule", symptom, 0.8, [f"PyTorch warned: {early}"])
        if (negative := _negative(run.motion)) is not None:
            yield from_symptom("lr-schedule", negative, 0.96, [], remedy=NEGATIVE)
        elif (spent := _spent(run.motion)) is not None:
            yield from_symptom("lr-schedule", spent, 0.88, [], remedy=SPENT)
        alone = evidence.facts is None or len(evidence.facts.optimizers) <= 1
        if not alone or any(
            s.kind == "explosion" and s.severity != "info" for s in evidence.symptoms
        ):
            return  # what grew has its own rule
        if (lost := _lost(run.motion)) is not None:
            symptom, step = lost
            verdicts = list(oversized(run, step))
            certainty = 0.6 if any(v.confidence >= 0.85 for v in verdicts) else 0.8
            rate = f"the learning rate is {number(run.last_rate)}, at most {number(run.top_rate)}"
            for verdict in (*verdicts, Verdict("lr-too-high", certainty, rate)):
                yield from_verdict(verdict, symptom)


def _negative(motion: Motion) -> Symptom | None:
    bad = next(((step, rate) for step, rate in motion.rates.points if rate < 0), None)
    if bad is None:
        return None
    detail = f"the learning rate is {number(bad[1])} at step {bad[0]}: updates climb the loss"
    return Symptom("slow-progress", bad[0], 0, "warning", detail)


def _spent(motion: Motion) -> Symptom | None:
    """Nearly all of the rate was used in the first updates, and little was learned by then."""
    rates, losses, start = motion.rates.points, motion.losses.points, motion.start
    total = sum(rate for _, rate in rates)
    if start is None or start <= 0 or total <= 0 or min(loss for _, loss in losses) <= 0:
        return None
    early = rates[: max(1, round(EARLY * len(rates)))]
    if sum(rate for _, rate in early) < NEARLY_ALL * total:
        return None
    end = early[-1][0]
    around = [loss for step, loss in losses if end <= step <= 2 * end] or [losses[-1][1]]
    then, level = median(around), motion.level
    if level is None or then < UNDONE * start or level < STOPPED * then:
        return None
    detail = (
        f"{100 * NEARLY_ALL:.0f} % of the learning rate was spent by step {end} of "
        f"{rates[-1][0]}, at a loss of {number(then)}; it began at {number(start)} and is "
        f"{number(level)} now"
    )
    return Symptom("slow-progress", end, 0, "warning", detail)


def _lost(motion: Motion) -> tuple[Symptom, int] | None:
    """A loss that was low, left at once and stayed far above; and the step at which it left."""
    losses, start, level = motion.losses.points, motion.start, motion.level
    if start is None or level is None or start <= 0 or min(loss for _, loss in losses) <= 0:
        return None
    blocks = [losses[at : at + BLOCK] for at in range(0, len(losses) - BLOCK + 1, BLOCK)]
    if len(blocks) < 4:
        return None
    medians = [median(loss for _, loss in block) for block in blocks]
    best = min(range(len(medians)), key=medians.__getitem__)
    later = medians[best + 1 :]
    newest = medians[-max(2, len(medians) // 4) :]
    low = max(LOST * medians[best], HIGH_AGAIN * start)
    if not later or min(newest) < low or level < low:
        return None
    risen = next(at for at in range(best, len(medians)) if medians[at] >= low)
    calm = max(at for at in range(best, risen) if medians[at] < low / 2) if risen > best else best
    if risen - calm > ABRUPT or not _steepened(motion, blocks[calm][-1][0], blocks[risen][-1][0]):
        return None
    left = blocks[risen][0][0]
    detail = (
        f"the loss had come down to {number(medians[best])} by step {blocks[best][-1][0]} and is "
        f"at {number(level)} since about step {left}"
    )
    return Symptom("slow-progress", left, 0, "warning", detail), left + BLOCK


def _steepened(motion: Motion, since: int, until: int) -> bool:
    """Whether gradients between two steps were far above those before."""
    before = [norm for step, norm in motion.norms.points if step <= since]
    during = [norm for step, norm in motion.norms.points if since <= step <= until]
    return bool(before and during) and max(during) >= STEEPER * median(before) > 0
