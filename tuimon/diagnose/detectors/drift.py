"""Early warning: gradients or updates that run away while the loss has not moved yet."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from tuimon.diagnose.detectors.course import Course, CourseDetector
from tuimon.diagnose.detectors.robust import median
from tuimon.diagnose.incidents import Incident
from tuimon.diagnose.updates import Update
from tuimon.model.records import AnyRecord, Symptom
from tuimon.model.samples import ParameterSamples
from tuimon.model.units import number

# Before a spike of Adam near convergence the gradient norm doubles every two steps while the loss
# is flat (measured on full-batch regression); noise of a batch is covered by the second factor.
GROWTH = 3.0
SIGMAS = 4.0
ROW = 3  # updates in a row: one hard batch is no drift
LOSS_IN_BAND = math.log(1.5)  # the loss counts as unmoved up to here, or within SIGMAS
# A ratio of update to weight that is so much above its own median: schedules move it by less
# between two samples.
RATIO_GROWTH = 5.0
RATIOS = 16
MIN_RATIOS = 4
WORSE = 2.0  # times the ratio that was told last
FORGET = 100  # updates after which a drift that nothing followed is over


class Drift(CourseDetector):
    """A gradient norm, or a ratio of update to weight, that leaves its band before the loss."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        super().__init__(course, rank)
        self._incident = Incident()
        self._ratios: deque[float] = deque(maxlen=RATIOS)
        self._told_ratio = 0.0
        self._high: list[tuple[int, float]] = []
        self._since_update = 0

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if self.is_new_era():
            self._high.clear()
            self._ratios.clear()
            self._told_ratio = 0.0
        for update in self.course.fresh:
            yield from self._judge(update)
        if isinstance(record, ParameterSamples) and record.optimizer == 0:
            yield from self._judge_ratio(record)

    def _judge(self, update: Update) -> Iterator[Symptom]:
        course = self.course
        norm, loss = update.measured.grad_norm, update.loss
        band = course.band()
        usual = course.norm_band()
        if norm is None or loss is None or usual is None or band is None:
            return
        if not (0 < norm < math.inf) or loss <= 0:
            return
        above = math.log(norm) - usual.middle
        if above <= max(math.log(GROWTH), SIGMAS * usual.sigma):
            self._high.clear()
            self._incident.calm()
            if course.drifting_since is not None:
                self._since_update += 1
                if self._since_update > FORGET:
                    course.drifting_since = None
            return
        self._high.append((update.step, norm))
        del self._high[:-FORGET]
        self._since_update = 0
        unmoved = math.log(loss) - band.middle <= max(LOSS_IN_BAND, SIGMAS * band.sigma)
        grows = len(self._high) >= ROW and self._high[-1][1] > self._high[-ROW][1]
        if course.drifting_since is None and unmoved and grows:
            course.drifting_since = self._high[0][0]
            if self._incident.worsens("info"):
                times = norm / usual.level
                detail = (
                    f"the gradient norm has grown {number(times)} times to {number(norm)} since "
                    f"step {self._high[0][0]} while the loss stands at {number(loss)}"
                )
                yield Symptom(
                    "drift", self._high[0][0], self.rank, "info", detail, {"grad_growth": times}
                )

    def _judge_ratio(self, record: ParameterSamples) -> Iterator[Symptom]:
        ratios = [item.update_ratio for item in record.items if item.update_ratio is not None]
        ratio = median(ratios)
        if not math.isfinite(ratio) or ratio <= 0:
            return
        usual = median(self._ratios) if len(self._ratios) >= MIN_RATIOS else None
        self._ratios.append(ratio)
        if usual is None or ratio <= RATIO_GROWTH * usual or not self._loss_is_unmoved():
            return
        if self.course.drifting_since is None:
            self.course.drifting_since = record.step
        # Noise of small batches crosses the bound now and then: what is not worse is no news.
        if ratio > WORSE * self._told_ratio and self._incident.worsens("info"):
            self._told_ratio = ratio
            detail = (
                f"an update moves the weights by {number(ratio)} of their norm, usually "
                f"{number(usual)}, and the loss has not answered yet"
            )
            figures = {"update_ratio": ratio, "usual_update_ratio": usual}
            yield Symptom("drift", record.step, self.rank, "info", detail, figures)

    def _loss_is_unmoved(self) -> bool:
        band = self.course.band()
        if band is None or not self.course.points or self.course.points[-1].loss <= 0:
            return False
        above = math.log(self.course.points[-1].loss) - band.middle
        return above <= max(LOSS_IN_BAND, SIGMAS * band.sigma)
