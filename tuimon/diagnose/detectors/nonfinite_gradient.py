"""Gradients that are not finite, and norms of gradients that single precision cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuimon.diagnose.amp import SKIPS_BELOW_USEFUL, SKIPS_FROM_START, USEFUL_SCALE
from tuimon.diagnose.batches import NewestBatches
from tuimon.diagnose.gradients import bits_in_words, describe_flags, describe_tensors
from tuimon.diagnose.incidents import Detector, Incident
from tuimon.diagnose.updates import Update, Updates
from tuimon.model.autopsy import LEAF, OPERATION, Autopsy
from tuimon.model.records import NON_FINITE, NORM_OVERFLOW, AnyRecord, LayerTable, Symptom
from tuimon.model.units import number


@dataclass
class _Row:
    """Updates in a row that a GradScaler has left out."""

    begins: int
    length: int = 0
    useless: int = 0  # of them at a scale that makes gradients smaller


class NonFiniteGradient(Detector):
    """A gradient with NaN or Inf, and a gradient norm that float32 cannot hold.

    Critical when the update was made; a warning when it was left out; only a remark when a
    GradScaler left it out, which is how it finds its scale, until no scale can be the reason or an
    examination has found another one.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._updates = Updates()
        self._batches = NewestBatches()
        self._names: list[str] = []
        self._incidents: dict[tuple[str, int], Incident] = {}
        self._rows: dict[int, _Row] = {}
        self._examined: Autopsy | None = None  # the newest that no loss scale explains

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        self._batches.see(record)
        if isinstance(record, LayerTable):
            self._names = record.names
        elif isinstance(record, Autopsy) and record.trigger == "non-finite-gradient":
            self._examined = record if record.bad_at_scale_1 is not False else None
        for update in self._updates.see(record):
            yield from self._judge(update)

    def close(self) -> Iterator[Symptom]:
        for update in self._updates.close():
            yield from self._judge(update)

    def unrecovered(self) -> Iterator[str]:
        for (kind, _), incident in self._incidents.items():
            if incident.is_critical and not incident.is_calm:
                yield kind

    def _judge(self, update: Update) -> Iterator[Symptom]:
        if update.bits is None:
            return
        gradient = self._incident("non-finite-gradient", update)
        norm = self._incident("explosion", update)
        if update.bits & NON_FINITE:
            step, severity, fate = self._fate(update)
            if gradient.worsens(severity):
                note = self._batches.note(update.step, update.optimizer)
                detail = f"{self._gradient_in_words(update)}; {fate}{note}"
                yield Symptom("non-finite-gradient", step, self._rank, severity, detail)
            return
        gradient.calm()
        self._rows.pop(update.optimizer, None)
        if not update.bits & NORM_OVERFLOW:
            norm.calm()
        elif norm.worsens("warning"):
            where = describe_flags(update.flags, self._names, NORM_OVERFLOW)
            detail = f"every gradient is finite, but its norm overflows float32 {where}".rstrip()
            yield Symptom("explosion", update.step, self._rank, "warning", detail)

    def _fate(self, update: Update) -> tuple[int, str, str]:
        """Step, severity and what became of it; a scaler's row speaks from its first update on."""
        if not update.skipped:
            return update.step, "critical", update.fate
        if update.scale is None:
            return update.step, "warning", update.fate
        row = self._rows.setdefault(update.optimizer, _Row(update.step))
        row.length += 1
        row.useless += update.scale < USEFUL_SCALE
        found = self._examined
        if found is not None and found.step == update.step and found.verdict in (OPERATION, LEAF):
            return update.step, "warning", f"{update.fate}, and that is not the scale's doing"
        if row.length < SKIPS_FROM_START and row.useless < SKIPS_BELOW_USEFUL:
            return update.step, "info", update.fate
        told = f"{row.length} updates in a row, the newest at scale {number(update.scale)}"
        return row.begins, "warning", f"the GradScaler left out {told}: no scale helps"

    def _incident(self, kind: str, update: Update) -> Incident:
        return self._incidents.setdefault((kind, update.optimizer), Incident())

    def _gradient_in_words(self, update: Update) -> str:
        what = bits_in_words(update.bits or 0)
        where = describe_flags(update.flags, self._names)
        exact = describe_tensors(t for t in update.bad if t.what == "gradient")
        return f"gradient has {what} {where or exact}".rstrip()
