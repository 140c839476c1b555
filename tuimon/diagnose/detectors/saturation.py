"""Probabilities that are all exactly 0 or 1, so that no gradient passes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tuimon.diagnose.detectors.chance import BINARY
from tuimon.diagnose.detectors.course import Course, CourseDetector
from tuimon.diagnose.incidents import Incident
from tuimon.model.batches import TensorSummary
from tuimon.model.records import AnyRecord, Batch, Symptom
from tuimon.model.samples import Activations
from tuimon.model.units import number

LOOKS = 2  # in a row
MIN_OUTPUTS = 4
# For numbers in 0 … 1 the variance is at most mean (1 - mean), and only 0 and 1 reach that.
EXACT = 1e-9
ENDS = 0.999  # share of exact ends among the outputs of a sigmoid
SIGMOIDS = frozenset(("Sigmoid", "Hardsigmoid", "Softmax"))
# Torch clamps the logarithm in binary cross-entropy at -100: each wrong sample costs 100 and has
# no gradient. Worse than guessing (ln 2) tells that there are wrong ones.
GUESSING = math.log(2)


class SaturatedOutput(CourseDetector):
    """Every probability at its end: fine where all are right, a dead end where some are wrong."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        super().__init__(course, rank)
        self._incident = Incident(recovery_steps=2)
        self._looks = 0
        self._begun = 0

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, Batch):
            for loss in record.losses:
                plain_binary = loss.facts.op.startswith(BINARY) and "Logits" not in loss.facts.op
                if plain_binary and loss.prediction.looked_at >= MIN_OUTPUTS:
                    yield from self._judge(record.step, _at_ends(loss.prediction))
        elif isinstance(record, Activations):
            # Only where the loss is not seen: it tells the same from the outputs themselves.
            for item in record.items:
                if item.kind in SIGMOIDS and item.numel >= MIN_OUTPUTS and item.one_frac:
                    ends = item.one_frac + (item.zero_frac or 0.0)
                    if ends >= ENDS:
                        yield from self._judge(record.step, True)

    def _judge(self, step: int, is_so: bool) -> Iterator[Symptom]:
        if not is_so:
            self._looks = 0
            self._incident.calm()
            return
        self._begun = step if not self._looks else self._begun
        self._looks += 1
        level = self.course.points[-1].loss if self.course.points else None
        if self._looks < LOOKS or level is None:
            return
        severity = "warning" if level > GUESSING and not self.course.has_improved else "info"
        if self._incident.worsens(severity):
            detail = (
                f"every output that was looked at is exactly 0 or 1 and the loss is "
                f"{number(level)}: a wrong one costs 100 and has no gradient"
            )
            figures = {"loss": level}
            yield Symptom("saturated-output", self._begun, self.rank, severity, detail, figures)


def _at_ends(outputs: TensorSummary) -> bool:
    low, high, mean, std = outputs.low, outputs.high, outputs.mean, outputs.std
    if low is None or high is None or mean is None or std is None:
        return False
    return low >= 0 and high <= 1 and abs(std * std - mean * (1 - mean)) <= EXACT
