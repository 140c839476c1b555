"""Units that answer 0 to every sample, and layers behind which no gradient arrives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuimon.diagnose.detectors.course import Course, CourseDetector
from tuimon.diagnose.incidents import PRIMARY, Incident
from tuimon.diagnose.updates import Update
from tuimon.model.records import (
    NO_GRAD,
    UNMEASURED,
    AnyRecord,
    LayerTable,
    Symptom,
)
from tuimon.model.samples import Activation, Activations
from tuimon.model.text import plain

# Modules whose zeros mean "off". A Linear or an embedding of zeros may be an initialisation, a
# Dropout and a mask are meant.
RECTIFIERS = frozenset(("ReLU", "ReLU6", "Threshold", "Hardshrink", "Softshrink", "RReLU"))
MANY = 0.9  # share of silent units that is worth a remark
LOOKS = 2  # in a row
# A layer that is off throughout in so many looks cuts off all that lies below it, whatever else of
# the model still learns.
LOST_LOOKS = 3
# Updates in a row without any gradient in half of the weights or more: rarely chosen parts of a
# model (experts, branches) wake up earlier.
ROW = 50
EVERY = 5  # updates from one look at the gradients to the next
HALF = 0.5
MIN_UPDATES = 30  # before the loss is asked whether the training learns all the same


class DeadUnits(CourseDetector):
    """A layer of which no unit answers; a warning where the training does not learn either."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        super().__init__(course, rank)
        self._silent: dict[str, int] = {}
        self._incidents: dict[str, Incident] = {}
        self._weights: list[int] = []
        self._rows: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, LayerTable):
            self._renew(record)
        for update in self.course.fresh:
            if update.step % EVERY == 0:
                yield from self._judge_gradients(update)
        if isinstance(record, Activations):
            for item in record.items:
                if item.kind in RECTIFIERS and item.silent_frac is not None:
                    yield from self._judge(record.step, item, item.silent_frac)

    def _judge(self, step: int, item: Activation, share: float) -> Iterator[Symptom]:
        if share < MANY:
            self._silent.pop(item.module, None)
            if item.module in self._incidents:
                self._incidents[item.module].calm()
            return
        looks = self._silent[item.module] = self._silent.get(item.module, 0) + 1
        if looks < LOOKS or len(self._silent) > 512:
            return
        detail = (
            f"{plain(item.module, 120) or 'the model'} ({plain(item.kind, 60)}): "
            f"{100 * share:.0f} % of the units are 0 for every sample"
        )
        is_lost = share == 1.0 and (self._is_stuck() or looks >= LOST_LOOKS)
        severity = "warning" if is_lost else "info"
        yield from self._say(item.module, step, severity, detail, {"silent_frac": share})

    def _judge_gradients(self, update: Update) -> Iterator[Symptom]:
        norms = np.frombuffer(update.measured.norms, "<f4")
        if self._rows is None or not self._weights or len(norms) <= self._weights[-1]:
            return
        zero = norms[self._weights] == 0
        if update.flags:
            flags = np.frombuffer(update.flags, np.uint8)[self._weights]
            zero &= (flags & (NO_GRAD | UNMEASURED)) == 0
        self._rows = np.where(zero, np.where(self._rows > 0, self._rows + EVERY, 1), 0)
        dead = self._rows >= ROW
        share = float(dead.mean())
        # All of them: the loss does not depend on the model, which is not about units.
        if not HALF <= share < 1.0:
            return
        names = self.course.table.names if self.course.table is not None else []
        index = self._weights[int(np.flatnonzero(dead)[-1])]
        name = plain(names[index], 120) if index < len(names) else f"parameter {index}"
        detail = (
            f"the gradient of {int(dead.sum())} of {len(dead)} weights has been exactly zero for "
            f"{ROW} updates, up to {name}: what follows them lets nothing through"
        )
        severity = "warning" if self._is_stuck() else "info"
        step = update.step - int(self._rows[dead].min()) + 1
        yield from self._say("", step, severity, detail, {"dead_share": share})

    def _is_stuck(self) -> bool:
        return self.course.updates >= MIN_UPDATES and not self.course.has_improved

    def _renew(self, table: LayerTable) -> None:
        owned = zip(table.shapes, table.optimizer_index, strict=False)
        weights = [
            i for i, (shape, owner) in enumerate(owned) if len(shape) > 1 and owner == PRIMARY
        ]
        if weights != self._weights:
            self._weights = weights
            self._rows = np.zeros(len(weights), np.int64)

    def _say(
        self, what: str, step: int, severity: str, detail: str, figures: dict[str, float]
    ) -> Iterator[Symptom]:
        if self._incidents.setdefault(what, Incident(recovery_steps=2)).worsens(severity):
            yield Symptom("dead-units", step, self.rank, severity, detail, figures)
