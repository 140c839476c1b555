"""Parameters that do not move although the training goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tuimon.diagnose.detectors.course import WARM_UP, Course, CourseDetector
from tuimon.diagnose.detectors.progress import MIN_UPDATES
from tuimon.diagnose.detectors.robust import median
from tuimon.diagnose.incidents import PRIMARY, Incident
from tuimon.diagnose.updates import Update
from tuimon.model.records import (
    NO_GRAD,
    UNMEASURED,
    AnyRecord,
    LayerTable,
    Symptom,
)
from tuimon.model.samples import ParameterSamples
from tuimon.model.text import plain
from tuimon.model.units import number

# Updates in a row. Between two accumulations or phases a gradient may be missing for some.
NO_GRADIENT_ROW = 10
ZERO_ROW = 20
ZERO_RATE_ROW = 20
# A gradient of exactly zero is right where nothing is lost any more.
LOST = 0.1  # of the loss at the start
# Parts without any gradient: a head that a phase does not use is common, most of a model is not.
MOST = 0.5
# A rounded update changes few of the elements it is meant for. Weights that take updates change
# nearly all of them in single precision, and half of them in half precision at sane rates.
FEW_CHANGE = 0.25
SAMPLES = 3
# Updates that vanish late: next to nothing is changed, a small part of what was at first, by a
# gradient and a rate as high as then. A weight that has arrived has a smaller gradient.
FEWEST, FEWER, AS_LARGE = 0.05, 0.25, 0.5
STILL = 0.05  # of the first loss: what the newer half of the run has gained at most
HALF = ("bfloat16", "float16")
_NAMED = 3

_Mask = npt.NDArray[np.bool_]


class FrozenParameters(CourseDetector):
    """No gradients, zero gradients, a zero learning rate, or updates that are rounded away."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        super().__init__(course, rank)
        self._incidents: dict[str, Incident] = {}
        self._rows: dict[str, int] = {}
        self._never: _Mask | None = None
        self._trained: _Mask | None = None
        self._looked = 0
        self._changed: deque[float] = deque(maxlen=16)
        self._halves: deque[float] = deque(maxlen=16)
        self._first_halves: list[float] = []
        self._first_norms: list[float] = []
        self._at_full_rate = True

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, LayerTable):
            self._renew(record)
        for update in self.course.fresh:
            yield from self._judge(update)
        if isinstance(record, ParameterSamples) and record.optimizer == PRIMARY:
            if self._at_full_rate:  # a rate that ends low rounds away what is meant to be small
                self._take(record)
            yield from self._rounding()

    def close(self) -> Iterator[Symptom]:
        yield from self._rounding()

    # --- one update -------------------------------------------------------------------------------

    def _judge(self, update: Update) -> Iterator[Symptom]:
        if not update.skipped:
            yield from self._rate(update)
        rates = [rate for rate in update.lrs if rate is not None]
        self._at_full_rate = not rates or 2 * max(rates) >= self.course.top_rate
        norm = update.measured.grad_norm
        if norm is not None and len(self._first_norms) < SAMPLES:
            self._first_norms.append(norm)
        trained = self._trained
        if trained is None or update.loss is None or update.bits is None:
            return
        if not update.bits & NO_GRAD and (update.measured.grad_norm or 0.0) != 0.0:
            self._row("none", False)
            self._row("zero", False)
            self._looked += 1
            self._never = np.zeros(len(trained), bool)
            return
        flags = np.frombuffer(update.flags, np.uint8)
        norms = np.frombuffer(update.measured.norms, "<f4")
        if not len(flags):
            flags = np.zeros(len(trained), np.uint8)
        if not len(flags) == len(norms) == len(trained) or not trained.any():
            return
        missing = (flags & NO_GRAD) > 0
        zero = (norms == 0) & ((flags & (NO_GRAD | UNMEASURED)) == 0)
        yield from self._no_gradient(update, bool(missing[trained].all()))
        all_zero = bool((zero | missing)[trained].all()) and bool(zero[trained].any())
        yield from self._zero(update, all_zero)
        self._looked += 1
        self._never = missing if self._never is None else self._never & missing
        if self._looked % MIN_UPDATES == 0:
            yield from self._starved(update)

    def _no_gradient(self, update: Update, is_so: bool) -> Iterator[Symptom]:
        if (row := self._row("none", is_so)) >= NO_GRADIENT_ROW:
            detail = (
                f"no trained parameter has had a gradient at the last {row} updates although "
                f"backward ran: they are cleared, or never made, before the optimizer steps"
            )
            yield from self._say(
                "none", update.step - row + 1, "warning", detail, {"missing_row": row}
            )

    def _zero(self, update: Update, is_so: bool) -> Iterator[Symptom]:
        start, loss = self.course.start, update.loss
        lost = start is not None and loss is not None and abs(loss) > LOST * abs(start) > 0
        if (row := self._row("zero", is_so and lost)) >= ZERO_ROW:
            detail = (
                f"every gradient has been exactly zero at the last {row} updates while the loss "
                f"is {number(update.loss or 0.0)}"
            )
            yield from self._say(
                "zero", update.step - row + 1, "warning", detail, {"zero_row": row}
            )

    def _rate(self, update: Update) -> Iterator[Symptom]:
        known = bool(update.lrs) and all(rate is not None for rate in update.lrs)
        row = self._row("rate", known and not any(update.lrs))
        if row < ZERO_RATE_ROW:
            return
        # A schedule that has come to its end leaves what was learned.
        severity = "info" if self.course.others or self.course.has_improved else "warning"
        detail = f"the learning rate has been exactly 0 for {row} updates: no weight changes"
        yield from self._say("rate", update.step - row + 1, severity, detail, {"rate_row": row})

    def _starved(self, update: Update) -> Iterator[Symptom]:
        table, trained, never = self.course.table, self._trained, self._never
        if table is None or trained is None or never is None:
            return
        starved = np.flatnonzero(never & trained)
        if not len(starved):
            return
        sizes = np.array([float(np.prod(shape)) for shape in table.shapes])
        share = len(starved) / int(trained.sum())
        elements = sizes[starved].sum() / max(1.0, sizes[trained].sum())
        is_most = share >= MOST and elements >= MOST
        severity = "warning" if is_most and not self.course.has_improved else "info"
        names = ", ".join(plain(table.names[index], 120) for index in starved[:_NAMED])
        more = f" and {len(starved) - _NAMED:,} more" if len(starved) > _NAMED else ""
        detail = (
            f"{len(starved):,} of {int(trained.sum()):,} trained parameters never had a gradient "
            f"in {self._looked:,} updates: {names}{more}"
        )
        figures = {"share": share, "share_of_elements": float(elements)}
        yield from self._say("starved", self.course.first_step, severity, detail, figures)

    # --- rounding ---------------------------------------------------------------------------------

    def _take(self, record: ParameterSamples) -> None:
        table = self.course.table
        dtypes = dict(zip(table.names, table.dtypes, strict=False)) if table is not None else {}
        for half, kept in ((False, self._changed), (True, self._halves)):
            items = [
                (item.changed_frac, item.compared)
                for item in record.items
                if item.changed_frac is not None
                and item.grad_absmax
                and (dtypes.get(item.name, "") in HALF) is half
            ]
            weight = sum(compared for _, compared in items)
            if weight:
                kept.append(sum(share * compared for share, compared in items) / weight)
        if self._halves and len(self._first_halves) < SAMPLES:
            self._first_halves.append(self._halves[-1])

    def _rounding(self) -> Iterator[Symptom]:
        course = self.course
        if course.at_full_rate < MIN_UPDATES or not course.top_rate:
            return
        swallowed = self._is_swallowed()
        severity = "warning" if swallowed or not course.has_improved else "info"
        for what, shares, bound in (
            ("half-precision", self._halves, FEW_CHANGE),
            ("", self._changed, 0.0),
        ):
            newest = list(shares)[-SAMPLES:] if swallowed else shares
            if len(shares) < SAMPLES or median(newest) > bound:
                continue
            share = median(newest)
            weights = f"{what} weights".strip()
            detail = (
                f"an update changes {100 * share:.1f} % of the {weights} and leaves the others "
                f"bit for bit as they were, although they have gradients"
            )
            figures = {"changed_frac": share}
            yield from self._say(f"rounding {what}", course.first_step, severity, detail, figures)

    def _is_swallowed(self) -> bool:
        """Whether rounding has ended a training that had come some way."""
        course = self.course
        level, start = course.level, course.start
        newest = list(self._halves)[-SAMPLES:]
        if level is None or not start or course.is_signed or len(newest) < SAMPLES:
            return False
        blocks = course.blocks
        gained = blocks[len(blocks) // 2] - blocks[-1] if len(blocks) > 1 else start
        norms = [p.grad_norm for p in list(course.points)[-WARM_UP:] if p.grad_norm is not None]
        return (
            level > LOST * start
            and gained < STILL * start
            and median(newest) <= min(FEWEST, FEWER * median(self._first_halves))
            and median(norms) >= AS_LARGE * median(self._first_norms)
        )

    # --- parts ------------------------------------------------------------------------------------

    def _renew(self, table: LayerTable) -> None:
        owned = np.array([index == PRIMARY for index in table.optimizer_index], bool)
        trains = np.array(table.requires_grad, bool)
        if not len(owned) == len(trains) == len(table.names) == len(table.shapes):
            self._trained = None
            return
        trained = owned & trains
        if self._trained is None or not np.array_equal(trained, self._trained):
            self._trained, self._never, self._looked = trained, None, 0
            for kept in (self._changed, self._halves, self._first_halves, self._first_norms):
                kept.clear()

    def _row(self, what: str, is_so: bool) -> int:
        row = self._rows.get(what, 0) + 1 if is_so else 0
        self._rows[what] = row
        if not is_so and what in self._incidents:
            self._incidents[what].calm()
        return row

    def _say(
        self, what: str, step: int | None, severity: str, detail: str, figures: dict[str, float]
    ) -> Iterator[Symptom]:
        if self._incidents.setdefault(what, Incident()).worsens(severity):
            kept = {name: float(value) for name, value in figures.items()}
            yield Symptom("frozen-parameters", step, self.rank, severity, detail, kept)
