"""Whether a training's weights, or its loss, are finite now, and since when they are not."""

from __future__ import annotations

import math

from tuimon.model.records import LayerTable, Step, Symptom
from tuimon.model.units import count

_WEIGHTS, _LOSS = "non-finite-parameter", "non-finite-loss"


class Finite:
    """Sees every step. A late viewer has seen few of them, and the symptoms of all."""

    def __init__(self) -> None:
        self._frozen: set[str] = set()
        self._bad: dict[str, int] = {}  # what is bad now, and the first step that was seen so
        self._told: dict[str, int] = {}  # the newest symptom of each kind

    def see(self, record: Step | Symptom | LayerTable) -> None:
        """Take in one record."""
        if isinstance(record, LayerTable):
            pairs = zip(record.names, record.requires_grad, strict=False)
            self._frozen = {name for name, trains in pairs if not trains}
        elif isinstance(record, Symptom):
            if record.kind in (_WEIGHTS, _LOSS) and record.severity == "critical":
                self._told[record.kind] = -1 if record.step is None else record.step
        else:
            self._see_step(record)

    @property
    def words(self) -> str:
        """What is not finite and since when; "" where nothing is known to be so."""
        for kind, what in ((_WEIGHTS, "weights"), (_LOSS, "loss")):
            seen = self._bad.get(kind)
            if seen is not None:
                since = self._told.get(kind, seen)
                return f"{what} not finite since step {count(min(seen, since))}"
        return ""

    def _see_step(self, step: Step) -> None:
        # A frozen tensor may be a mask, which holds infinities on purpose.
        bad = any(
            each.what == "parameter" and (each.nan or each.name not in self._frozen)
            for each in step.bad
        )
        if bad:
            self._bad.setdefault(_WEIGHTS, step.step)
        elif step.weights_checked and step.bad_total <= len(step.bad):
            self._bad.pop(_WEIGHTS, None)
        if step.loss is None:
            return
        if math.isfinite(step.loss):
            self._bad.pop(_LOSS, None)
        else:
            self._bad.setdefault(_LOSS, step.step)
