"""Losses that grow out of all proportion to where the training began."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tuimon.diagnose.detectors.course import Course, CourseDetector
from tuimon.diagnose.incidents import Incident
from tuimon.diagnose.updates import Update
from tuimon.model.records import NON_FINITE, AnyRecord, Symptom
from tuimon.model.units import number

# Measured against the untrained model or, if that is more, the level of late: a model that knows
# nothing is not so wrong by far. Two orders of magnitude are more than any hop of a bold step.
LARGE = 100.0
ROW = 3  # updates in a row, the last one no better than the first
# Sustained for longer, less is enough: where a loss is clamped it cannot grow further.
SUSTAINED = 20.0
SUSTAINED_ROW = 20
# So large that no target or input of the data set can explain it twice in a row.
ENORMOUS = 1e6
# The gradient must have grown too, by this factor of the first one: a policy loss is close to zero
# at the first update and large later, with the same gradient.
STEEPER = 10.0
CALM = 10.0  # below this factor the training is on its way back


class Explosion(CourseDetector):
    """A loss far above that of an untrained model, for several updates or on its way to Inf."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        super().__init__(course, rank)
        self._incident = Incident()
        self._row: list[tuple[int, float]] = []  # (step, factor) of the updates above LARGE
        self._sustained = 0
        self._begun: int | None = None
        self._base: float | None = None
        self._first_norm: float | None = None

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if self.is_new_era():
            self._row.clear()
            self._sustained, self._begun, self._base = 0, None, None
        for update in self.course.fresh:
            yield from self._judge(update)

    def unrecovered(self) -> Iterator[str]:
        if self._incident.is_critical and not self._incident.is_calm:
            yield "explosion"

    def _judge(self, update: Update) -> Iterator[Symptom]:
        loss = update.loss
        if loss is None:
            return
        is_bad = not math.isfinite(loss) or bool((update.bits or 0) & NON_FINITE)
        if self._base is None and not is_bad:
            self._base, self._first_norm = abs(loss), update.measured.grad_norm
        base = self._reference()
        if base is None:
            return
        if is_bad:
            yield from self._broke(update, base)
            return
        factor = abs(loss) / base
        self._sustained = self._sustained + 1 if factor >= SUSTAINED else 0
        if factor < CALM:
            self._incident.calm()
        if self._sustained == 1:
            self._begun = update.step
        if factor < LARGE:
            self._row.clear()
        else:
            self._row.append((update.step, factor))
            del self._row[:-SUSTAINED_ROW]
        yield from self._conclude(update, loss, factor)

    def _conclude(self, update: Update, loss: float, factor: float) -> Iterator[Symptom]:
        step = update.step
        newest = self._row[-ROW:]
        grows = len(newest) == ROW and newest[-1][1] >= newest[0][1] / 2
        enormous = sum(each >= ENORMOUS for _, each in self._row[-2:]) == 2
        if not (grows or enormous or self._sustained >= SUSTAINED_ROW):
            return
        severity = "critical" if enormous or factor >= ENORMOUS else "warning"
        if not self._is_steeper(update):
            severity = "info"
        begun = self._begun if self._begun is not None else step
        if not self._incident.worsens(severity):
            return
        detail = (
            f"the loss is {number(loss)}, {number(factor)} times where the training began, and "
            f"has been far above it since step {begun}"
        )
        yield self._symptom(begun, severity, detail, factor)

    def _is_steeper(self, update: Update) -> bool:
        norm, first = update.measured.grad_norm, self._first_norm
        if update.skipped or norm is None or first is None:
            return False
        return not norm <= STEEPER * first

    def _broke(self, update: Update, base: float) -> Iterator[Symptom]:
        """The value that is not finite comes at the end of a growth that has been seen."""
        if not self._row or self._row[-1][0] < update.step - 1 or update.skipped:
            return
        step, factor = self._row[0]
        if not self._incident.worsens("critical"):
            return
        detail = (
            f"the loss had grown to {number(self._row[-1][1])} times where the training began "
            f"before values ceased to be finite at step {update.step}"
        )
        yield self._symptom(step, "critical", detail, factor)

    def _reference(self) -> float | None:
        band = self.course.band()
        points = self.course.points
        if self._base is None or not points:
            return None
        base = self._base
        if self.course.is_signed:
            # A loss that crosses zero has no level of its own: its largest swing so far has.
            base = max(base, *(abs(point.loss) for point in list(points)[:-ROW] or points))
        if band is not None and not self._row:
            base = max(base, band.level)
        return base if base > 0 else None

    def _symptom(self, step: int, severity: str, detail: str, factor: float) -> Symptom:
        figures = {"factor": factor}
        lead = self.course.lead(step)
        if lead is not None:
            figures["lead_steps"] = float(lead)
            detail += f"; the gradient norm had left its band {lead} steps before"
        return Symptom("explosion", step, self.rank, severity, detail, figures)
