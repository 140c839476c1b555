"""What a script logs about its evaluations, against its training."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator

from tuimon.diagnose.detectors.course import Course, CourseDetector
from tuimon.diagnose.incidents import Incident
from tuimon.model.records import AnyRecord, Scalars, Symptom
from tuimon.model.text import plain
from tuimon.model.units import number

EVALUATED = re.compile(r"(^|[/_.\-])(val|valid|validation|eval|dev|test)([/_.\-]|$)", re.IGNORECASE)
LOSS = re.compile(r"loss|nll|cross_?entropy|perplexity", re.IGNORECASE)
MAX_KEYS = 32
RISES = 5  # evaluations in a row above the best one: fewer are noise (Prechelt 1998 stops at 5)
GAP = 1.25  # of the best one
NOT_FINITE_ROW = 2  # one may be an average over nothing


class EvalGap(CourseDetector):
    """An evaluation loss that moves away from its best, or is not finite while training is."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        super().__init__(course, rank)
        self._values: dict[str, deque[float]] = {}
        self._best: dict[str, float] = {}
        self._bad: dict[str, int] = {}
        self._incidents: dict[str, Incident] = {}

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if not isinstance(record, Scalars):
            return
        for key, value in record.values.items():
            if EVALUATED.search(key) and LOSS.search(key):
                yield from self._judge(record.step, key, value)

    def _judge(self, step: int, key: str, value: float) -> Iterator[Symptom]:
        if key not in self._incidents and len(self._incidents) >= MAX_KEYS:
            return
        incident = self._incidents.setdefault(key, Incident(recovery_steps=1))
        if not math.isfinite(value):
            row = self._bad[key] = self._bad.get(key, 0) + 1
            trains = bool(self.course.points) and self.course.points[-1].step >= step - 1
            if row >= NOT_FINITE_ROW and trains and incident.worsens("warning"):
                detail = (
                    f"{plain(key, 120)} is {number(value)} for {row} evaluations while the "
                    f"training loss is {number(self.course.points[-1].loss)}"
                )
                yield Symptom("eval-gap", step, self.rank, "warning", detail, {"row": float(row)})
            return
        self._bad[key] = 0
        values = self._values.setdefault(key, deque(maxlen=RISES))
        values.append(value)
        best = self._best[key] = min(value, self._best.get(key, math.inf))
        if len(values) < RISES or best <= 0 or min(values) <= GAP * best:
            incident.calm()
        elif incident.worsens("info"):
            detail = (
                f"{plain(key, 120)} was {number(best)} at its best and has been at "
                f"{number(min(values))} or more for {RISES} evaluations"
            )
            yield Symptom("eval-gap", step, self.rank, "info", detail, {"best": best})
