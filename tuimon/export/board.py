"""A recording as the event file of TensorBoard, written by TensorBoard's own package."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuimon.errors import UsageError
from tuimon.export import rows
from tuimon.feed.chronicle import memory_name
from tuimon.feed.recording import Recording
from tuimon.model.records import Step
from tuimon.model.samples import HISTOGRAM_BINS, HISTOGRAM_LOW, Histogram
from tuimon.model.text import plain

_VERSION = "brain.Event:2"  # what every event file begins with
_SCALARS = (
    *("loss", "grad_norm", "grad_norm_clipped", "loss_scale", "step_s", "data_s", "forward_s"),
    *("backward_s", "optimizer_s", "cost_s"),
)


def write_tensorboard(ranks: Sequence[Recording], folder: Path) -> int:
    """An event file with scalars and histograms, of several ranks one for each in a folder of
    its own; how many values they have.

    NaN and infinities are written as what they are; a skipped update is `skipped` = 1.

    Raises:
        UsageError: tensorboard is not installed.
    """
    count = 0
    for recording in ranks:
        of_rank = folder if len(ranks) == 1 else folder / f"rank_{recording.rank or 0}"
        of_rank.mkdir(exist_ok=True)
        count += _write(recording, of_rank)
    return count


def _write(recording: Recording, folder: Path) -> int:
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise UsageError('TensorBoard needs tensorboard: pip install "tuimon[export]"') from error

    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    count = 0
    with (folder / name).open("xb") as file:
        writer = RecordWriter(file)

        def write(**what: Any) -> None:
            writer.write(event_pb2.Event(**what).SerializeToString())

        write(wall_time=time.time(), file_version=_VERSION)
        for time_s, step, value in _values(recording, summary_pb2):
            summary = summary_pb2.Summary(value=[value])
            write(wall_time=time_s, step=step, summary=summary)
            count += 1
    return count


def _values(recording: Recording, summary_pb2: Any) -> Iterator[tuple[float, int, Any]]:
    """(unix time, step, value) of everything that it shows."""
    time_s = 0.0
    for row in rows.rows([recording]):
        values = row.values
        time_s = values.get("time_s") or time_s
        if row.table == rows.STEPS:
            prefix = "" if values["optimizer"] == 0 else f"optimizer_{values['optimizer']}/"
            found = {name: values.get(name) for name in (*_SCALARS, *rows.LRS)}
            found["skipped"] = float(values["skipped"]) if values["skipped"] else None
            for name, value in found.items():
                if value is not None:
                    yield time_s, values["step"], _scalar(prefix + name, value, summary_pb2)
        elif row.table == rows.SCALARS:
            yield time_s, values["step"], _scalar(values["name"], values["value"], summary_pb2)
        elif row.table == rows.SYSTEM:
            yield from _memory(values, "process", values["trainer_rss_bytes"], summary_pb2)
        elif row.table == rows.MEMORY:
            yield from _memory(values, values["device"], values["allocated_bytes"], summary_pb2)
    for _, record in recording.records():
        if isinstance(record, Step):
            time_s = record.time_ns / 1e9
        elif isinstance(record, Histogram):
            tag = f"{record.what}/{plain(record.name)}"
            made = histogram(record, summary_pb2)
            yield time_s, record.step, summary_pb2.Summary.Value(tag=tag, histo=made)


def _memory(
    values: dict[str, Any], device: str, size_bytes: int | None, summary_pb2: Any
) -> Iterator[tuple[float, int, Any]]:
    """As the charts have it: GiB at the newest step."""
    if values["step"] is not None and size_bytes is not None:
        value = _scalar(memory_name(device), size_bytes / 2**30, summary_pb2)
        yield values["time_s"], values["step"], value


def histogram(record: Histogram, summary_pb2: Any) -> Any:
    """The record in the buckets of TensorBoard; what is not finite has no place there.

    Sums are those of the middles of the bins, because the record has no others.
    """
    counts = np.frombuffer(record.counts, "<u4").astype(np.float64)
    edges = 2.0 ** (HISTOGRAM_LOW + np.arange(HISTOGRAM_BINS + 1, dtype=np.float64))
    # From the most negative up: right edges, which for negative bins are their smaller magnitude.
    limits = np.concatenate((-edges[:-1][::-1], [0.0], edges[1:]))
    filled = np.concatenate((counts[:HISTOGRAM_BINS], [record.zeros], counts[HISTOGRAM_BINS:]))
    middles = np.concatenate((-1.5 * edges[:-1][::-1], [0.0], 1.5 * edges[:-1]))
    used = np.flatnonzero(filled)
    first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (HISTOGRAM_BINS, 1)
    first = max(0, first - 1)  # an empty bucket says where the first full one begins
    kept = slice(first, max(end, first + 1))
    lefts = np.concatenate((-edges[1:][::-1], [-edges[0]], edges[:-1]))
    return summary_pb2.HistogramProto(
        min=float(lefts[used[0]]) if len(used) else 0.0,
        max=float(limits[used[-1]]) if len(used) else 0.0,
        num=float(filled.sum()),
        sum=float((filled * middles).sum()),
        sum_squares=float((filled * middles**2).sum()),
        bucket_limit=limits[kept].tolist(),
        bucket=filled[kept].tolist(),
    )


def _scalar(tag: str, value: float, summary_pb2: Any) -> Any:
    return summary_pb2.Summary.Value(tag=plain(tag), simple_value=value)
