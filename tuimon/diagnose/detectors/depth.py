"""Gradients that fade on their way to the first layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tuimon.diagnose.detectors.course import BLOCK, Course, CourseDetector
from tuimon.diagnose.detectors.progress import is_stuck
from tuimon.diagnose.incidents import PRIMARY, Incident
from tuimon.diagnose.updates import Update
from tuimon.model.records import AnyRecord, LayerTable, Symptom
from tuimon.model.text import plain
from tuimon.model.units import number

MIN_WEIGHTS = 4  # with fewer there is no depth to fade over
# The first third of the weights against the largest of the last. A sigmoid passes at most a
# quarter on, so that six of them leave 1/4096 and two leave 1/16 (Bengio, Simard & Frasconi 1994;
# Glorot & Bengio 2010).
FADED = 1e-3
# Less is enough where the loss says that nothing is learned: a deep post-norm transformer without
# warm-up passes between 1e-1 and 1e-5 on, in turns (measured; 4e-3 in the mean).
FADED_STUCK = 1e-2
LIVE_UPDATES = 300  # before a run that goes on is called stuck; deep stacks start slowly
EVERY = 4  # updates from one look to the next
MEMORY = 0.05  # weight of the newest look in the mean of the logarithms: 80 updates


class VanishingGradient(CourseDetector):
    """A remark where gradients fade; a warning where that training does not learn either."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        super().__init__(course, rank)
        self._incident = Incident(recovery_steps=5)
        self._slow = False
        self._weights: list[int] = []
        self._logs: npt.NDArray[np.float64] | None = None
        self._seen = 0

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, LayerTable):
            self._renew(record)
        for update in self.course.fresh:
            if update.step % EVERY == 0:
                self._take(update)
        if self.course.fresh and self.course.updates % (2 * BLOCK) == 0:
            is_late = self.course.at_full_rate >= LIVE_UPDATES
            yield from self._judge(at_most="warning" if is_late else "info")

    def close(self) -> Iterator[Symptom]:
        yield from self._judge(at_most="warning")

    def _take(self, update: Update) -> None:
        norms = np.frombuffer(update.measured.norms, "<f4")
        if not self._weights or len(norms) <= self._weights[-1]:
            return
        chosen = norms[self._weights].astype(np.float64)
        good = np.isfinite(chosen) & (chosen > 0)
        logs = np.log(chosen, where=good, out=np.full(len(chosen), np.nan))
        if self._logs is None:
            self._logs = logs
        else:
            moved = self._logs + MEMORY * (logs - self._logs)
            self._logs = np.where(np.isnan(self._logs), logs, np.where(good, moved, self._logs))
        self._seen += 1

    def _judge(self, at_most: str) -> Iterator[Symptom]:
        if self._logs is None or self._seen * EVERY < 2 * BLOCK:
            return
        known = np.flatnonzero(~np.isnan(self._logs))
        if len(known) < MIN_WEIGHTS:
            return
        third = max(1, len(known) // 3)
        first = float(np.exp(np.median(self._logs[known[:third]])))
        last = float(np.exp(np.max(self._logs[known[-third:]])))
        course = self.course
        stuck = at_most == "warning" and is_stuck(course)
        if first > (FADED_STUCK if stuck else FADED) * last:
            self._incident.calm()
            return
        severity = "warning" if stuck else "info"
        if not self._incident.worsens(severity):
            return
        names = course.table.names if course.table is not None else []
        ends = [self._weights[known[0]], self._weights[known[-1]]]
        low, high = (plain(names[i], 120) if i < len(names) else f"parameter {i}" for i in ends)
        detail = (
            f"the gradient fades from {number(last)} in the last layers ({high}) to "
            f"{number(first)} in the first ({low})"
        )
        figures = {"first": first, "last": last, "ratio": first / last if last else 0.0}
        step = course.first_step
        yield Symptom("vanishing-gradient", step, self.rank, severity, detail, figures)
        level, start = course.level, course.start
        if stuck and not self._slow and level is not None and start is not None:
            self._slow = True
            detail = (
                f"the loss is {number(level)} after {course.updates:,} updates and began at "
                f"{number(start)}, while the gradient fades towards the first layers"
            )
            slow = {"level": level, "start": start}
            yield Symptom("slow-progress", step, self.rank, "warning", detail, slow)

    def _renew(self, table: LayerTable) -> None:
        weights = [
            index
            for index, (shape, owner) in enumerate(
                zip(table.shapes, table.optimizer_index, strict=False)
            )
            if len(shape) >= 2 and owner == PRIMARY
        ]
        if weights != self._weights:
            self._weights, self._logs, self._seen = weights, None, 0
