"""The course of the primary optimizer's loss, which several detectors read; finds nothing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tuimon.diagnose.detectors.chance import Chance
from tuimon.diagnose.detectors.robust import Band, band_of, median
from tuimon.diagnose.incidents import PRIMARY, Detector
from tuimon.diagnose.updates import Update, Updates
from tuimon.model.records import AnyRecord, LayerTable, Step, Symptom

FIRST = 5  # losses that say where the training began
WINDOW = 64  # updates that make the band: short against a schedule, long against a batch
# Left out of the band before the newest update: what grows for some steps must not raise the bar
# for itself. Twice the time in which a gradient that runs away doubles a few times (see drift).
LAG = 16
WARM_UP = 20  # updates in a band before anything is compared with it
BLOCK = 20  # updates whose median is one point of the long curve: the noise of a batch is gone
MAX_BLOCKS = 256
BAND_EVERY = 4  # updates that share a band: it moves by a 16th of its length
WARMING = 2.0  # a learning rate that has doubled since is still warming up
# Below this share of the start a training has learned something. A constant answer that fits the
# mean of the targets rarely lowers a loss that began at a sane initialisation by a fifth.
IMPROVED = 0.8


@dataclass(frozen=True, slots=True)
class Point:
    """One update with a finite loss."""

    step: int
    loss: float
    grad_norm: float | None  # of a finite one


class Course(Detector):
    """Robust figures of the loss curve, in bounded memory. Fed before the detectors that read it.

    Attributes:
        table: the newest layer table.
        fresh: updates of the primary optimizer that the newest record completed.
        chance: what a model that has learned nothing would lose.
        updates: attempted updates of the primary optimizer so far.
        at_full_rate: of these, with a learning rate that has left its warm-up.
        others: whether another optimizer steps too: then the loss is one side of a game.
        era: how often the training has begun anew with other parameters.
        drifting_since: step at which the gradient left its band while the loss had not.
        highest: the largest loss so far.
    """

    def __init__(self) -> None:
        self.table: LayerTable | None = None
        self.fresh: list[Update] = []
        self.others = False
        self.era = 0
        self._joiner = Updates()
        self.start_over()

    def start_over(self) -> None:
        """Other parameters are trained now: nothing known of the old ones holds."""
        self.era += 1
        self.chance = Chance()
        self.updates = self.at_full_rate = 0
        self.points: deque[Point] = deque(maxlen=WINDOW + LAG)
        self.drifting_since: int | None = None
        self.top_rate = self._settled_rate = 0.0
        self.first_step: int | None = None
        self.is_signed = False
        self.highest = 0.0
        self._firsts: list[float] = []
        self._block: list[float] = []
        self._blocks: deque[float] = deque(maxlen=MAX_BLOCKS)
        self._bands: dict[str, tuple[int, Band | None]] = {}

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        self.fresh = []
        if isinstance(record, LayerTable):
            if self.table is not None and record.epoch != self.table.epoch:
                self.start_over()
            self.table = record
        elif isinstance(record, Step) and record.optimizer != PRIMARY:
            self.others = True
        self.chance.see(record)
        for update in self._joiner.see(record):
            self._take(update)
        yield from ()

    def close(self) -> Iterator[Symptom]:
        self.fresh = []
        for update in self._joiner.close():
            self._take(update)
        yield from ()

    # --- figures ----------------------------------------------------------------------------------

    @property
    def start(self) -> float | None:
        """The loss of the untrained model."""
        if not self._firsts:
            return None
        # Where the second update already explodes, the median of the first ones says nothing.
        return min(self._firsts[0], median(self._firsts))

    @property
    def level(self) -> float | None:
        """Where the loss is now: the median of the newest quarter of the run."""
        if len(self._blocks) >= 4:
            newest = list(self._blocks)[-max(1, len(self._blocks) // 4) :]
            return median(newest)
        recent = [point.loss for point in self.points]
        return median(recent[-max(1, len(recent) // 4) :]) if recent else None

    @property
    def blocks(self) -> list[float]:
        """Medians of successive blocks, oldest first."""
        return list(self._blocks)

    @property
    def has_improved(self) -> bool:
        """Whether the loss is clearly lower than at the start; also where that cannot be told."""
        start, level = self.start, self.level
        if start is None or level is None or start <= 0 or self.is_signed:
            return True
        return level < IMPROVED * start

    def band(self) -> Band | None:
        """The band of the loss before the newest `LAG` updates; None where there is none."""
        return self._kept_band("loss", lambda point: point.loss)

    def norm_band(self) -> Band | None:
        """The band of the gradient norm before the newest `LAG` updates."""
        return self._kept_band("norm", lambda point: point.grad_norm)

    def lead(self, step: int) -> int | None:
        """How many steps before `step` the gradient left its band; None where it had not."""
        since = self.drifting_since
        return None if since is None or since >= step else step - since

    def _kept_band(self, what: str, pick: Callable[[Point], float | None]) -> Band | None:
        at, band = self._bands.get(what, (-BAND_EVERY, None))
        if self.updates - at >= BAND_EVERY:
            older = [value for point in self.points if (value := pick(point)) is not None][:-LAG]
            band = band_of(older) if len(older) >= WARM_UP else None
            self._bands[what] = (self.updates, band)
        return band

    # --- parts ------------------------------------------------------------------------------------

    def _take(self, update: Update) -> None:
        if update.optimizer != PRIMARY:
            return
        self.fresh.append(update)
        self.updates += 1
        if self.first_step is None:
            self.first_step = update.step
        rates = [rate for rate in update.lrs if rate is not None]
        self.top_rate = max([self.top_rate, *rates])
        if self.top_rate > WARMING * self._settled_rate:
            self._settled_rate, self.at_full_rate = self.top_rate, 0
        if not rates or max(rates) * WARMING >= self.top_rate > 0:
            self.at_full_rate += 1
        loss = update.loss
        if loss is None or not math.isfinite(loss):
            return
        self.is_signed |= loss < 0
        self.highest = max(self.highest, loss)
        norm = update.measured.grad_norm
        if norm is not None and not math.isfinite(norm):
            norm = None  # a gradient that was left out makes no band
        self.points.append(Point(update.step, loss, norm))
        if len(self._firsts) < FIRST:
            self._firsts.append(loss)
        self._block.append(loss)
        if len(self._block) == BLOCK:
            self._blocks.append(median(self._block))
            self._block.clear()


class CourseDetector(Detector):
    """A detector that reads a course which was fed with the same record before."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        self.course = course
        self.rank = rank
        self._era = course.era

    def is_new_era(self) -> bool:
        """Whether the training has begun anew since this was asked last."""
        before, self._era = self._era, self.course.era
        return before != self._era
