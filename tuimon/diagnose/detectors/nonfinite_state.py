"""Parameters, buffers and optimizer state that are not finite."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.gradients import describe_tensors
from tuimon.diagnose.incidents import Detector, Incident
from tuimon.model.causes import SEVERITIES
from tuimon.model.records import AnyRecord, BadTensor, LayerTable, Step, Symptom


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


def _found_before_update(record: Step) -> bool:
    """Whether weights or optimizer state were bad already before this update."""
    if record.weights_checked != "both":
        return record.weights_checked != "after"
    # Buffers change in the forward pass: they may be bad before an update that spoils the weights.
    buffers = sum(tensor.what == "buffer" for tensor in record.bad)
    return (record.bad_before or 0) > buffers
