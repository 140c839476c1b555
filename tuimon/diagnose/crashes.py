"""The scene of a crash in words and as an entry of the report."""

from __future__ import annotations

from collections import deque
from typing import Any

from tuimon.diagnose.incidents import PRIMARY
from tuimon.model.autopsy import BACKWARD, FORWARD, OPTIMIZER
from tuimon.model.batches import TensorSummary
from tuimon.model.crash import DATA, CodePlace, Crash, MemoryFigures
from tuimon.model.records import AnyRecord, DeviceStats, Step, loss_of
from tuimon.model.text import plain
from tuimon.model.units import number, size_bytes

LAST_STEPS = 8
_OPERANDS_NAMED = 3
_PHASES = {
    FORWARD: "in the forward pass",
    BACKWARD: "in the backward pass",
    OPTIMIZER: "in the update",
    DATA: "while data were loaded",
}


class CrashScene:
    """The crash of a run, if there was one, and the last updates before it.

    Attributes:
        crash: what the trainer found; None without a crash.
    """

    def __init__(self) -> None:
        self.crash: Crash | None = None
        self._steps: deque[dict[str, Any]] = deque(maxlen=LAST_STEPS)

    def see(self, record: AnyRecord) -> None:
        """Take one record in."""
        if isinstance(record, Step | DeviceStats) and record.optimizer == PRIMARY:
            self._note(record)
        elif isinstance(record, Crash) and self.crash is None:
            self.crash = record

    def entry(self) -> dict[str, Any] | None:
        """The autopsy of the crash as the report has it; None without one."""
        if self.crash is None:
            return None
        return {**_entry(self.crash), "last_steps": list(self._steps)}

    def _note(self, record: Step | DeviceStats) -> None:
        known = next((each for each in self._steps if each["step"] == record.step), None)
        if known is None:
            known = {"step": record.step, "loss": None, "grad_norm": None, "skipped": False}
            self._steps.append(known)
        for key, value in (("loss", loss_of(record)), ("grad_norm", record.grad_norm)):
            if value is not None:
                known[key] = value
        if isinstance(record, Step):
            known["skipped"] = record.skipped


def crash_in_words(crash: Crash) -> str:
    """What happened where, and what stood there, in one line."""
    text = f"{crash.kind}: {crash.message}" if crash.message else crash.kind
    if crash.cause:
        text += f" (from {crash.cause})"
    where = [_PHASES[crash.phase]] if crash.phase in _PHASES else []
    if crash.in_model:
        where.append(f"in {crash.module or 'the root module'} ({crash.module_type})")
    if crash.op:
        where.append(f"by {crash.op}")
    if crash.place is not None:
        where.append(f"at {_place_in_words(crash.place)}")
    parts = [text, ", ".join(where)]
    parts += [tensor_in_words(each) for each in crash.inputs[:_OPERANDS_NAMED]]
    parts += [_memory_in_words(each) for each in crash.memory]
    return plain("; ".join(part for part in parts if part))


def tensor_in_words(tensor: TensorSummary) -> str:
    """ "yb (target) int64 [32] 1 … 6"."""
    text = f"{tensor.name} {tensor.dtype} {tensor.shape}"
    if tensor.low is not None and tensor.high is not None:
        text += f" {number(tensor.low)} … {number(tensor.high)}"
    for word, count in (("NaN", tensor.nan), ("+Inf", tensor.posinf), ("-Inf", tensor.neginf)):
        if count:
            text += f", {count:,} {word}"
    return text


def _place_in_words(place: CodePlace) -> str:
    return f"{place.file}:{place.line}" + (f" `{place.source}`" if place.source else "")


def _memory_in_words(figures: MemoryFigures) -> str:
    known = [
        f"{size_bytes(value)} {word}"
        for word, value in (
            ("asked for", figures.asked_bytes),
            ("in use", figures.allocated_bytes),
            ("reserved", figures.reserved_bytes),
            ("at the peak", figures.peak_bytes),
            ("in all", figures.total_bytes),
        )
        if value is not None
    ]
    return f"{figures.device}: {', '.join(known)}" if known else ""


def _entry(crash: Crash) -> dict[str, Any]:
    place = crash.place
    return {
        "step": crash.step,
        "engine": "",
        "first": {
            "op": crash.op or None,
            "phase": crash.phase,
            "module": crash.module,
            "file": place.file if place else None,
            "line": place.line if place else None,
            "source": place.source if place else "",
            "inputs": [_operand(tensor) for tensor in crash.inputs],
        },
        "path": [_place_in_words(each) for each in crash.frames],
        "rank": crash.rank,
        "verdict": "crash",
        "exception": {
            "kind": crash.kind,
            "message": crash.message,
            "cause": crash.cause or None,
            "library": crash.library or None,
            "module_type": crash.module_type or None,
        },
        "out_of_memory": crash.out_of_memory,
        "memory": [
            {name: getattr(each, name) for name in each.__struct_fields__} for each in crash.memory
        ],
        "notes": list(crash.notes),
    }


def _operand(tensor: TensorSummary) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "min": tensor.low,
        "max": tensor.high,
        "mean": tensor.mean,
        "nan": tensor.nan,
        "posinf": tensor.posinf,
        "neginf": tensor.neginf,
        "looked_at": tensor.looked_at,
        "why_not": tensor.why_not or None,
    }
