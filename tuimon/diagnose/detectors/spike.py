"""Losses that jump out of their band and come back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tuimon.diagnose.detectors.course import LAG, Course, CourseDetector
from tuimon.diagnose.detectors.robust import Band, median
from tuimon.diagnose.incidents import MAX_INCIDENTS
from tuimon.model.records import AnyRecord, Symptom
from tuimon.model.units import number

# A spike lies so much above the median of its band, in factors and in robust deviations of the
# logarithm, and twice as high as anything in the band: batches of two of a healthy training differ
# by four orders of magnitude, and then nothing is a spike.
FACTOR = 4.0
SIGMAS = 6.0
OVER_TOP = math.log(2.0)
BACK = math.log(2.0)  # above the middle; lower than this, or within SIGMAS / 2, it is over
LONGEST = 200  # updates; what lasts longer is a new level

# Spikes of an optimizer build up over several steps, those of a batch are there at once.
GRADUAL = math.log(1.3)
RECURRING = 3
# Higher than what trainings with a bold learning rate hop while they learn.
HIGH = 10.0
# One burst is enough where nothing but the optimizer can make it: a loss as smooth as that of a
# whole data set, a gradient that drifts away first, and an excursion that rings before it is over.
SMOOTH = math.log(1.03)  # from one update to the next
RINGS = 3
RING_STEPS = 8  # from the end of one to the beginning of the next
# A run of batches that the model does not know: no slow return as after a bad update, but the old
# level within one step.
SHARD_STEPS = 3
SHARD_FACTOR = 20.0
SHARD_DROP = 10.0


@dataclass(slots=True)
class _Spike:
    """A spike that is not over.

    Attributes:
        begun: its first step.
        band: of the loss before it.
        gradual: the step before its first one was on the way up already.
        lead: steps from the drift of the gradient to its beginning.
    """

    begun: int
    band: Band
    gradual: bool
    lead: int | None
    smooth: bool = False
    steps: int = 0
    peak: float = 0.0
    previous: float = 0.0


class Spike(CourseDetector):
    """One spike is a remark; what keeps coming back, or comes and goes with the data, a warning."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        super().__init__(course, rank)
        self._open: _Spike | None = None
        self._count = 0
        self._high_gradual = 0
        self._warned_recurring = False
        self._burst: list[_Spike] = []
        self._ended = 0
        self._warned_burst = False

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        course = self.course
        if self.is_new_era():
            self._open = None
            self._burst.clear()
        for update in course.fresh:
            loss = update.loss
            if loss is None or not math.isfinite(loss) or loss <= 0:
                continue
            if self._open is not None:
                yield from self._follow(self._open, update.step, loss)
            elif (band := course.band()) is not None:
                yield from self._look_for(band, update.step, loss)

    def _look_for(self, band: Band, step: int, loss: float) -> Iterator[Symptom]:
        above = math.log(loss) - band.middle
        if above <= max(math.log(FACTOR), SIGMAS * band.sigma):
            return
        if math.log(loss) <= band.top + OVER_TOP:
            return
        points = self.course.points
        before = points[-2].loss if len(points) > 1 else loss
        gradual = before > 0 and math.log(before) - band.middle > max(GRADUAL, 3 * band.sigma)
        smooth = self._is_smooth()
        spike = _Spike(step, band, gradual, self.course.lead(step), smooth, 1, loss, loss)
        self._open = spike
        self._count += 1
        if self._count > MAX_INCIDENTS:
            return
        times = loss / band.level
        detail = f"the loss jumped to {number(loss)}, {number(times)} times its level"
        figures = {"times": times, "level": band.level}
        if spike.lead is not None:
            detail += f"; the gradient norm had left its band {spike.lead} steps before"
            figures["lead_steps"] = float(spike.lead)
        elif not gradual:
            detail += "; it came at once, with nothing before it in the gradients"
        yield Symptom("spike", step, self.rank, "info", detail, figures)

    def _follow(self, spike: _Spike, step: int, loss: float) -> Iterator[Symptom]:
        above = math.log(loss) - spike.band.middle
        drop = spike.previous / loss
        spike.previous = loss
        if above > max(BACK, 3 * spike.band.sigma) and spike.steps < LONGEST:
            spike.steps += 1
            spike.peak = max(spike.peak, loss)
            return
        self._open = None
        times = spike.peak / spike.band.level
        if spike.steps >= LONGEST:
            return
        figures = {"times": times, "steps": float(spike.steps), "level": spike.band.level}
        yield from self._ring(spike)
        if not spike.gradual and self._is_shard(spike, times, drop):
            detail = (
                f"the loss jumped {number(times)} times above its level at step {spike.begun}, "
                f"stayed there for {spike.steps} steps and fell back at once at step {step}: "
                f"it came and went with the batches"
            )
            yield Symptom("spike", spike.begun, self.rank, "warning", detail, figures)
        self._high_gradual += (spike.gradual or spike.lead is not None) and times >= HIGH
        if self._high_gradual >= RECURRING and not self._warned_recurring:
            self._warned_recurring = True
            detail = (
                f"{self._high_gradual} spikes so far, this one {number(times)} times above the "
                f"level before it, each building up over several steps: the steps are too long "
                f"for where the training is"
            )
            if spike.lead is not None:
                figures["lead_steps"] = float(spike.lead)
            figures["spikes"] = float(self._high_gradual)
            yield Symptom("spike", spike.begun, self.rank, "warning", detail, figures)

    def _ring(self, spike: _Spike) -> Iterator[Symptom]:
        """A spike has ended: is it one more of a burst?"""
        if spike.begun > self._ended + RING_STEPS:
            self._burst.clear()
        self._burst.append(spike)
        self._ended = spike.begun + spike.steps
        first = self._burst[0]
        times = first.peak / first.band.level
        rings = len(self._burst) >= RINGS and first.smooth and first.lead is not None
        if not rings or times < HIGH or self._warned_burst or first.lead is None:
            return
        self._warned_burst = True
        detail = (
            f"a loss that moved by less than {100 * (math.exp(SMOOTH) - 1):.0f} % an update rose "
            f"{number(times)} times above its level at step {first.begun} and rang, "
            f"{len(self._burst)} peaks so far; the gradient norm had left its band {first.lead} "
            f"steps before: the step is too long for where the training is"
        )
        figures = {"times": times, "spikes": float(len(self._burst)), "level": first.band.level}
        figures["lead_steps"] = float(first.lead)
        yield Symptom("spike", first.begun, self.rank, "warning", detail, figures)

    def _is_smooth(self) -> bool:
        """Whether the loss hardly moved from update to update before the newest ones."""
        losses = [point.loss for point in self.course.points if point.loss > 0][:-LAG]
        moves = [abs(math.log(then / now)) for now, then in pairwise(losses)]
        return bool(moves) and median(moves) <= SMOOTH

    def _is_shard(self, spike: _Spike, times: float, drop: float) -> bool:
        return spike.steps >= SHARD_STEPS and times >= SHARD_FACTOR and drop >= SHARD_DROP
