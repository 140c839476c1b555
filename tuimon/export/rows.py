"""Recordings as rows of tables: None where something is missing, NaN where it is NaN.

Rows come rank by rank in the order of the recording, in bounded memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tuimon.feed.frames import SCRIBE
from tuimon.feed.recording import Recording
from tuimon.model.findings import WITHDRAWN, FindingRecord, ranked
from tuimon.model.records import (
    NO_GRAD,
    UNMEASURED,
    DeviceStats,
    Event,
    LayerTable,
    Memory,
    Scalars,
    Step,
    Symptom,
    System,
    loss_of,
)
from tuimon.model.text import plain

STEPS, SCALARS, EVENTS, LAYERS = "steps", "scalars", "events", "layers"
SYMPTOMS, FINDINGS = "symptoms", "findings"
MEMORY, SYSTEM, DEVICES = "memory", "system", "devices"
PRIMARY = 0
MAX_GROUPS = 8  # learning rates that have a column
LATE_ROWS = 256  # updates that wait for what a device says of them

_OF_STEP = (
    *("step", "optimizer", "time_s", "loss", "grad_norm", "grad_norm_clipped", "max_norm", "clip"),
    *("loss_scale", "skipped", "step_s", "data_s", "forward_s", "backward_s", "optimizer_s"),
    *("cost_s", "bad_total", "data_epoch", "batch_index"),
)
_OF_SYSTEM = (
    *("time_s", "host_cpu_frac", "host_memory_used_bytes", "host_memory_total_bytes"),
    *("trainer_cpu_frac", "trainer_rss_bytes", "scribe_cpu_frac", "scribe_rss_bytes"),
)
_OF_DEVICE = (
    *("name", "memory_used_bytes", "memory_total_bytes", "utilisation_frac"),
    *("temperature_c", "power_w"),
)
_OF_MEMORY = ("time_s", "device", "allocated_bytes", "reserved_bytes", "peak_bytes")
LRS = tuple(f"lr_{place}" for place in range(MAX_GROUPS))
COLUMNS: dict[str, tuple[str, ...]] = {
    STEPS: (*_OF_STEP, *LRS, "rank"),
    SCALARS: ("step", "name", "value", "rank"),
    EVENTS: ("step", "time_s", "severity", "kind", "text", "rank"),
    SYMPTOMS: ("step", "rank", "severity", "kind", "text"),
    FINDINGS: ("step", "rank", "severity", "kind", "status", "confidence", "place", "text"),
    MEMORY: ("step", *_OF_MEMORY, "rank"),
    SYSTEM: ("step", *_OF_SYSTEM),
    DEVICES: ("step", "time_s", "device", *_OF_DEVICE),
    LAYERS: ("step", "optimizer", "layer", "grad_norm", "rank"),
}
# Columns that are no numbers with a fraction, by type.
INTEGERS = frozenset(
    name
    for columns in COLUMNS.values()
    for name in columns
    if name in ("step", "rank", "optimizer", "bad_total", "data_epoch", "batch_index")
    or name.endswith("_bytes")
)
WORDS = frozenset(
    ("clip", "name", "severity", "kind", "status", "place", "text", "layer", "device")
)
TRUTHS = frozenset(("skipped",))


class Row(NamedTuple):
    """One row of one table."""

    table: str
    values: dict[str, Any]


def rows(
    ranks: Sequence[Recording],
    symptoms: Sequence[dict[str, Any]] = (),
    *,
    with_layers: bool = False,
) -> Iterator[Row]:
    """Every row of every table.

    Args:
        ranks: the recordings of the processes of one run, the lead first.
        symptoms: those of all ranks, where there are several: a recording has of those that
            several ranks show one.
        with_layers: also the norm of each layer at each step, which is most of a recording.
    """
    several = len(ranks) > 1
    for recording in ranks:
        rank = recording.rank or 0
        for row in _of_rank(recording, with_layers=with_layers, is_lead=recording is ranks[0]):
            if several and row.table == SYMPTOMS:
                continue
            row.values.setdefault("rank", rank)
            yield row
    for each in symptoms if several else ():
        told = {name: each.get(name) for name in ("step", "rank", "severity", "kind")}
        yield Row(SYMPTOMS, told | {"text": plain(str(each.get("detail") or ""))})


def _of_rank(recording: Recording, *, with_layers: bool, is_lead: bool) -> Iterator[Row]:
    waiting: deque[tuple[Step, dict[str, Any]]] = deque()
    table: LayerTable | None = None
    findings: dict[str, FindingRecord] = {}  # the newest of each id
    newest: int | None = None
    for frame in recording.frames():
        if frame.source == SCRIBE and not is_lead:
            continue  # the same in the recording of every rank
        record = recording.decoded(frame)
        match record:
            case LayerTable():
                table = record
            case Step():
                newest = record.step if record.optimizer == PRIMARY else newest
                waiting.append((record, _of_step(record)))
                if with_layers:
                    yield from _of_layers(record, table)
            case DeviceStats():
                _join(record, waiting)
                if with_layers:
                    yield from _of_layers(record, table)
            case FindingRecord():
                findings[record.id] = record
            case Memory() | System():
                yield from _of_reading(record, newest)
            case Scalars() | Event() | Symptom():
                yield from _of_other(record)
        while waiting and (not waiting[0][0].late or len(waiting) > LATE_ROWS):
            yield Row(STEPS, waiting.popleft()[1])
    for _, values in waiting:
        yield Row(STEPS, values)
    for finding in ranked(each for each in findings.values() if each.status != WITHDRAWN):
        yield Row(FINDINGS, _of_finding(finding))


def _of_other(record: Scalars | Event | Symptom) -> Iterator[Row]:
    if isinstance(record, Scalars):
        yield from _of_scalars(record)
    elif isinstance(record, Event):
        yield Row(EVENTS, _of_event(record))
    else:
        yield Row(SYMPTOMS, _of_symptom(record))


def _of_reading(record: Memory | System, step: int | None) -> Iterator[Row]:
    """Taken by the clock; the step is the newest before it."""
    if isinstance(record, Memory):
        told = {name: getattr(record, name) for name in _OF_MEMORY}
        yield Row(MEMORY, told | {"step": step, "device": plain(record.device)})
        return
    yield Row(SYSTEM, {"step": step} | {name: getattr(record, name) for name in _OF_SYSTEM})
    for each in record.devices:
        told = {name: getattr(each, name) for name in _OF_DEVICE}
        device = f"{each.kind}:{each.index}"
        told |= {"step": step, "time_s": record.time_s, "device": device}
        yield Row(DEVICES, told | {"name": plain(each.name)})


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
