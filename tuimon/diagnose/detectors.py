"""Detectors of what is not finite, and of exceptions: records in, symptoms out.

Each sees the records of one rank in order. The step of a symptom is the step in the record that
shows it; where the record can only show it later, the text says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tuimon.diagnose.batches import NewestBatches
from tuimon.diagnose.gradients import (
    bits_in_words,
    describe_flags,
    describe_tensors,
    loss_in_words,
)
from tuimon.diagnose.incidents import MAX_WAITING, PRIMARY, Detector, Incident
from tuimon.diagnose.updates import Update, Updates
from tuimon.model.causes import SEVERITIES
from tuimon.model.records import (
    NON_FINITE,
    NORM_OVERFLOW,
    AnyRecord,
    BadTensor,
    Goodbye,
    LayerTable,
    Loss,
    Step,
    Symptom,
)
from tuimon.model.text import plain


class NonFiniteLoss(Detector):
    """A loss that is NaN or Inf.

    Critical when the gradients of the same update are not finite and reach the weights; a warning
    when they are finite, when the update was left out, or when there was no update at all.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._updates = Updates()
        self._batches = NewestBatches()
        self._early: dict[int, Loss] = {}  # by step: losses whose update is still to come
        self._incidents: dict[int, Incident] = {}

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        self._batches.see(record)
        if isinstance(record, Loss):
            if not math.isfinite(record.value) and len(self._early) < MAX_WAITING:
                self._early.setdefault(record.step, record)
            return
        for update in self._updates.see(record):
            yield from self._judge(update)

    def close(self) -> Iterator[Symptom]:
        for update in self._updates.close():
            yield from self._judge(update)
        yield from self._without_update(None)

    def unrecovered(self) -> Iterable[str]:
        if any(i.is_critical and not i.is_calm for i in self._incidents.values()):
            yield "non-finite-loss"

    def _judge(self, update: Update) -> Iterator[Symptom]:
        early = None
        if update.optimizer == PRIMARY:
            yield from self._without_update(update.step)
            early = self._early.pop(update.step, None)
        incident = self._incidents.setdefault(update.optimizer, Incident())
        bad = [value for value in update.losses if not math.isfinite(value)]
        if early is not None:
            bad.insert(0, early.value)
        if not bad:
            if update.losses:
                incident.calm()
            return
        severity = "critical" if update.is_poisonous else "warning"
        if not incident.worsens(severity):
            return
        text = loss_in_words(bad[0], early.site if early else "")
        note = self._batches.note(update.step, update.optimizer)
        yield self._symptom(update.step, severity, f"{text}; {update.fate}{note}")

    def _without_update(self, before: int | None) -> Iterator[Symptom]:
        """Losses whose update never came: the script left it out or ended."""
        for step in sorted(self._early):
            if before is not None and step >= before:
                break
            loss = self._early.pop(step)
            if self._incidents.setdefault(PRIMARY, Incident()).worsens("warning"):
                text = loss_in_words(loss.value, loss.site)
                note = self._batches.note(step)
                yield self._symptom(step, "warning", f"{text}; no update followed it{note}")

    def _symptom(self, step: int, severity: str, detail: str) -> Symptom:
        return Symptom("non-finite-loss", step, self._rank, severity, detail)


class NonFiniteGradient(Detector):
    """A gradient with NaN or Inf, and a gradient norm that float32 cannot hold.

    Critical when the update was made; a warning when it was left out; only a remark when a
    GradScaler left it out, which is how it finds its scale.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._updates = Updates()
        self._batches = NewestBatches()
        self._names: list[str] = []
        self._incidents: dict[tuple[str, int], Incident] = {}

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        self._batches.see(record)
        if isinstance(record, LayerTable):
            self._names = record.names
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
            severity = "critical"
            if update.skipped:
                severity = "warning" if update.scale is None else "info"
            if gradient.worsens(severity):
                note = self._batches.note(update.step, update.optimizer)
                detail = f"{self._gradient_in_words(update)}; {update.fate}{note}"
                yield Symptom("non-finite-gradient", update.step, self._rank, severity, detail)
            return
        gradient.calm()
        if not update.bits & NORM_OVERFLOW:
            norm.calm()
        elif norm.worsens("warning"):
            where = describe_flags(update.flags, self._names, NORM_OVERFLOW)
            detail = f"every gradient is finite, but its norm overflows float32 {where}".rstrip()
            yield Symptom("explosion", update.step, self._rank, "warning", detail)

    def _incident(self, kind: str, update: Update) -> Incident:
        return self._incidents.setdefault((kind, update.optimizer), Incident())

    def _gradient_in_words(self, update: Update) -> str:
        what = bits_in_words(update.bits or 0)
        where = describe_flags(update.flags, self._names)
        exact = describe_tensors(t for t in update.bad if t.what == "gradient")
        return f"gradient has {what} {where or exact}".rstrip()


class NonFiniteState(Detector):
    """Parameters, buffers and optimizer state with NaN or Inf, as the trainer's looks found them.

    What is found bad before the update of step n was written by the newest update before it, and
    that is the step of the symptom; what is found after the update of step n has step n.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._frozen: set[str] = set()
        self._previous: dict[int, int] = {}  # optimizer -> newest step that made its update
        self._incidents: dict[str, Incident] = {}

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, LayerTable):
            trainable = record.requires_grad or [True] * len(record.names)
            pairs = zip(record.names, trainable, strict=False)
            self._frozen = {name for name, trains in pairs if not trains}
            return
        if not isinstance(record, Step):
            return
        groups: dict[str, list[BadTensor]] = {}
        for tensor in record.bad:
            if tensor.what not in ("gradient", "loss"):
                groups.setdefault(tensor.what, []).append(tensor)
        for what, tensors in groups.items():
            yield from self._judge(what, tensors, record)
        # Only a look at the weights that finds nothing is a sign of health.
        if record.weights_checked and record.bad_total <= len(record.bad):
            for what, incident in self._incidents.items():
                if what not in groups:
                    incident.calm()
        if not record.skipped:
            self._previous[record.optimizer] = record.step

    def unrecovered(self) -> Iterator[str]:
        for what, incident in self._incidents.items():
            if incident.is_critical and not incident.is_calm:
                yield f"non-finite-{what}"

    def _judge(self, what: str, tensors: list[BadTensor], record: Step) -> Iterator[Symptom]:
        severity = max(
            (self._severity(what, tensor, record.step) for tensor in tensors),
            key=SEVERITIES.index,
        )
        if not self._incidents.setdefault(what, Incident()).worsens(severity):
            return
        step, side = record.step, "after"
        if what in ("parameter", "optimizer-state") and _found_before_update(record):
            step = self._previous.get(record.optimizer, record.step)
            side = "before"
        detail = (
            f"{what} {describe_tensors(tensors)}; found {side} the update of step {record.step}"
        )
        yield Symptom(f"non-finite-{what}", step, self._rank, severity, detail)

    def _severity(self, what: str, tensor: BadTensor, step: int) -> str:
        if what == "parameter":
            is_mask = tensor.name in self._frozen and not tensor.nan
            return "info" if is_mask else "critical"
        if what == "buffer":
            # A mask holds -Inf on purpose, a running minimum starts at +Inf.
            is_meant = not tensor.nan and (not tensor.posinf or step == 0)
            return "info" if is_meant else "warning"
        if what == "optimizer-state":
            return "critical" if tensor.nan else "warning"
        return "warning"


class ExceptionRaised(Detector):
    """The script ended with an exception, as it said in its last record."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._newest: int | None = None

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, Step) and record.optimizer == PRIMARY:
            self._newest = record.step
        if isinstance(record, Goodbye) and record.kind == "exception":
            step = record.step if record.step is not None else self._newest
            detail = plain(record.detail) or "the script raised"
            yield Symptom("exception", step, self._rank, "critical", detail)


def _found_before_update(record: Step) -> bool:
    """Whether weights or optimizer state were bad already before this update."""
    if record.weights_checked != "both":
        return record.weights_checked != "after"
    # Buffers change in the forward pass: they may be bad before an update that spoils the weights.
    buffers = sum(tensor.what == "buffer" for tensor in record.bad)
    return (record.bad_before or 0) > buffers
