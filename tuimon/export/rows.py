"""A recording as rows of tables: None where something is missing, NaN where it is NaN.

Rows come in the order of the recording, in bounded memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tuimon.feed.recording import Recording
from tuimon.model.findings import FindingRecord
from tuimon.model.records import (
    NO_GRAD,
    UNMEASURED,
    DeviceStats,
    Event,
    LayerTable,
    Scalars,
    Step,
    Symptom,
    loss_of,
)
from tuimon.model.text import plain

STEPS, SCALARS, EVENTS, LAYERS = "steps", "scalars", "events", "layers"
SYMPTOMS, FINDINGS = "symptoms", "findings"
MAX_GROUPS = 8  # learning rates that have a column
LATE_ROWS = 256  # updates that wait for what a device says of them

_OF_STEP = (
    *("step", "optimizer", "time_s", "loss", "grad_norm", "grad_norm_clipped", "max_norm", "clip"),
    *("loss_scale", "skipped", "step_s", "data_s", "forward_s", "backward_s", "optimizer_s"),
    *("cost_s", "bad_total", "data_epoch", "batch_index"),
)
LRS = tuple(f"lr_{place}" for place in range(MAX_GROUPS))
COLUMNS: dict[str, tuple[str, ...]] = {
    STEPS: (*_OF_STEP, *LRS),
    SCALARS: ("step", "name", "value"),
    EVENTS: ("step", "time_s", "severity", "kind", "text"),
    SYMPTOMS: ("step", "rank", "severity", "kind", "text"),
    FINDINGS: ("step", "rank", "severity", "kind", "status", "confidence", "place", "text"),
    LAYERS: ("step", "optimizer", "layer", "grad_norm"),
}
# Columns that are no numbers with a fraction, by type.
INTEGERS = frozenset(("step", "rank", "optimizer", "bad_total", "data_epoch", "batch_index"))
WORDS = frozenset(("clip", "name", "severity", "kind", "status", "place", "text", "layer"))
TRUTHS = frozenset(("skipped",))


class Row(NamedTuple):
    """One row of one table."""

    table: str
    values: dict[str, Any]


def rows(recording: Recording, *, with_layers: bool = False) -> Iterator[Row]:
    """Every row of every table.

    Args:
        recording: of one process.
        with_layers: also the norm of each layer at each step, which is most of a recording.
    """
    waiting: deque[tuple[Step, dict[str, Any]]] = deque()
    table: LayerTable | None = None
    findings: dict[str, FindingRecord] = {}  # the newest of each id
    for _, record in recording.records():
        match record:
            case LayerTable():
                table = record
            case Step():
                waiting.append((record, _of_step(record)))
                if with_layers:
                    yield from _of_layers(record, table)
            case DeviceStats():
                _join(record, waiting)
                if with_layers:
                    yield from _of_layers(record, table)
            case Scalars():
                yield from _of_scalars(record)
            case Event():
                yield Row(EVENTS, _of_event(record))
            case Symptom():
                yield Row(SYMPTOMS, _of_symptom(record))
            case FindingRecord():
                findings[record.id] = record
        while waiting and (not waiting[0][0].late or len(waiting) > LATE_ROWS):
            yield Row(STEPS, waiting.popleft()[1])
    for _, values in waiting:
        yield Row(STEPS, values)
    for finding in findings.values():
        yield Row(FINDINGS, _of_finding(finding))


def _of_step(record: Step) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(record, name, None) for name in _OF_STEP}
    values["time_s"] = record.time_ns / 1e9
    values["loss"] = loss_of(record)
    return values | dict(zip(LRS, record.lrs, strict=False))


def _join(record: DeviceStats, waiting: deque[tuple[Step, dict[str, Any]]]) -> None:
    """Fill in what a device has measured of an update whose row still waits for it."""
    for place, (step, values) in enumerate(waiting):
        if step.step == record.step and step.optimizer == record.optimizer:
            told = {"loss": loss_of(record)} | {
                name: getattr(record, name, None)
                for name in ("grad_norm", "grad_norm_clipped", "loss_scale", "bad_total")
            }
            values |= {name: value for name, value in told.items() if value is not None}
            waiting[place] = _settled(step), values
            return


def _settled(step: Step) -> Step:
    return Step(step.step, step.time_ns, optimizer=step.optimizer)


def _of_scalars(record: Scalars) -> Iterator[Row]:
    for name, value in record.values.items():
        yield Row(SCALARS, {"step": record.step, "name": plain(name), "value": value})


def _of_event(record: Event) -> dict[str, Any]:
    return {
        "step": record.step,
        "time_s": record.time_s,
        "severity": record.severity,
        "kind": record.kind,
        "text": plain(record.text),
    }


def _of_symptom(record: Symptom) -> dict[str, Any]:
    return {
        "step": record.step,
        "rank": record.rank,
        "severity": record.severity,
        "kind": record.kind,
        "text": plain(record.detail),
    }


def _of_finding(record: FindingRecord) -> dict[str, Any]:
    line = f"{record.file}:{record.line}" if record.file else ""
    place = (record.op, record.module, record.param, line)
    return {
        "step": record.step,
        "rank": record.rank,
        "severity": record.severity,
        "kind": record.cause,
        "status": record.status,
        "confidence": record.confidence,
        "place": plain(" ".join(each for each in place if each)),
        "text": plain("; ".join(record.evidence)),
    }


def _of_layers(record: Step | DeviceStats, table: LayerTable | None) -> Iterator[Row]:
    norms = np.frombuffer(record.norms[: len(record.norms) & ~3], "<f4")
    if table is None or record.epoch != table.epoch or len(norms) != len(table.names):
        return
    flags = np.frombuffer(record.flags, np.uint8)
    if len(flags) != len(norms):
        flags = np.zeros(len(norms), np.uint8)
    there = (flags & (NO_GRAD | UNMEASURED)) == 0
    for name, norm, is_there in zip(table.names, norms.tolist(), there.tolist(), strict=True):
        if is_there:
            told = {"step": record.step, "optimizer": record.optimizer, "layer": plain(name)}
            yield Row(LAYERS, told | {"grad_norm": norm})
