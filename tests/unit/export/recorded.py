"""Recordings of small runs, written by the real recorder."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tuimon.feed.codec import encode
from tuimon.feed.recorder import Recorder
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.model.records import (
    AnyRecord,
    Event,
    Facts,
    Goodbye,
    Hello,
    LayerTable,
    Scalars,
    Step,
)
from tuimon.model.samples import HISTOGRAM_BINS, Histogram

PID = 77
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e"
NAMES = ["body.0.weight", "body.0.bias", HOSTILE]
SECOND_NS = 10**9
STEPS, BAD_STEP = 60, 40


def info(name: str = "night") -> RunInfo:
    ranks = [RankInfo(0, PID, 5, "77.ring")]
    versions = {"torch": "2.13.0", "python": "3.11"}
    return RunInfo(
        "abcd1234", name, "here", 0, "/x", ["train.py", "--lr=1"], ranks=ranks, versions=versions
    )


def step(
    index: int, *, loss: float | None = None, norms: Iterable[float] = (1.0, 2.0, 3.0)
) -> Step:
    values = np.array(list(norms), "<f4")
    bad = not np.isfinite(values).all()
    return Step(
        index,
        (1000 + index) * SECOND_NS,
        loss=1.0 / (index + 1) if loss is None else loss,
        grad_norm=float(np.sqrt((values.astype(float) ** 2).sum())),
        lrs=[0.1],
        norms=values.tobytes(),
        flags=bytes([1 if math.isnan(value) else 0 for value in values]) if bad else b"",
        step_s=0.25,
    )


def a_night(steps: int = STEPS, bad_step: int | None = BAD_STEP) -> list[AnyRecord]:
    """A run that turns NaN in its last layer, or one that does not."""
    records: list[AnyRecord] = [
        Hello(1, "abcd1234", "night", "here", PID),
        LayerTable(0, NAMES, [[4, 2], [4], [1]]),
        Facts(optimizers=["AdamW"], modules=["Net"], settings=[{"beta1": 0.9}]),
    ]
    for index in range(steps):
        is_bad = bad_step is not None and index >= bad_step
        norms = (1.0, 2.0, math.nan if is_bad else 3.0)
        records.append(step(index, loss=math.nan if is_bad else None, norms=norms))
        if index % 20 == 0:
            counts = np.zeros(2 * HISTOGRAM_BINS, "<u4")
            counts[HISTOGRAM_BINS - 50] = 3  # of negative ones
            counts[HISTOGRAM_BINS + 40] = 5
            nan = 2 if is_bad else 0
            records.append(Histogram(index, "weight", NAMES[0], 10, 10, counts.tobytes(), 0, nan))
            records.append(Scalars(index, {"valid/loss": math.inf if is_bad else 0.5}))
    if bad_step is not None:
        records.append(Event(bad_step, 1.0, "critical", "non-finite", f"loss is NaN {HOSTILE}"))
    records.append(Goodbye("ok", 0))
    return records


def write(folder: Path, records: list[AnyRecord], name: str = "night") -> Path:
    recorder = Recorder(folder, info(name), PID, keep_free_bytes=0)
    for sequence, record in enumerate(records, 1):
        recorder.append(encode(record), sequence)
    recorder.close()
    return folder
