"""Thinning of a recording: what of old segments is kept, and how two of them become one.

Of a bucket of steps those stay that hold its smallest and largest values, its worst layer and its
end. Steps that are not finite or not usual, events, findings, autopsies, commands and everything
else that happens once stay in any case. What is kept is kept as it was written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from tuimon.feed import private
from tuimon.feed.codec import decode
from tuimon.feed.frames import OWN, Damage, Frame, packed
from tuimon.feed.segments import Segment, opening
from tuimon.model.records import (
    NO_GRAD,
    NON_FINITE,
    UNMEASURED,
    AnyRecord,
    Batch,
    DeviceStats,
    Memory,
    Output,
    Scalars,
    Step,
    System,
    loss_of,
)
from tuimon.model.samples import Activations, Governor, Histogram, ParameterSamples

WIDTHS = (1, 64, 1024, 16384, 262144)  # steps of a bucket, by level
TOP_LEVEL = len(WIDTHS) - 1
MAX_PENDING = 8192  # frames of a bucket: also one without steps ends
MAX_PENDING_BYTES = 32 << 20
_PRIMARY = 0
# Kinds of which a bucket keeps the newest, so many of each name.
_NEWEST = {
    cls.__struct_config__.tag: count
    for cls, count in {
        Governor: 1,
        System: 1,
        Memory: 1,
        Histogram: 1,
        ParameterSamples: 4,
        Activations: 4,
        Batch: 2,
        Output: 40,
    }.items()
}
_STEP, _STATS, _SCALARS = (cls.__struct_config__.tag for cls in (Step, DeviceStats, Scalars))
DETAIL = frozenset((*_NEWEST, _STEP, _STATS, _SCALARS))
_BAD_FLAGS = bytes(value for value in range(256) if value & NON_FINITE)


def coarsened(segments: Sequence[Segment], level: int, end: int) -> Iterator[None]:
    """Replace neighbouring segments by one of this level; yields between two pieces of the work.

    The first file is replaced in one moment; what remains of the others is covered by it then.

    Args:
        segments: in order, each with a readable head.
        level: of the new segment.
        end: ordinal behind the last frame that the segments may hold.

    Raises:
        OSError: there is no room; everything stays as it was.
    """
    first = segments[0]
    assert first.head is not None
    descriptor, draft = private.draft_of(first.path)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            head = msgspec.structs.replace(first.head, level=level, end=end)
            thinner = Thinner(level, lambda frame: file.write(packed(frame, compress=True)))
            checkpoint = first.checkpoint_bytes()
            file.write(opening(head, checkpoint))
            start = file.tell()
            yield
            for segment in segments:
                yield from _feed(segment, thinner)
            thinner.close()
            file.flush()
            left_out = thinner.left_out + sum(s.head.left_out for s in segments if s.head)
            beginning = opening(msgspec.structs.replace(head, left_out=left_out), checkpoint)
            yield from _put_before(file.fileno(), beginning, start)
        os.replace(draft, first.path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    for segment in segments[1:]:
        segment.path.unlink(missing_ok=True)


def _feed(segment: Segment, thinner: Thinner) -> Iterator[None]:
    for count, frame in enumerate(segment.frames(Damage())):
        thinner.add(frame)
        if count % 64 == 63:
            yield


def _put_before(descriptor: int, beginning: bytes, start: int) -> Iterator[None]:
    """Replace the first `start` bytes of a file; what follows moves where the lengths differ."""
    shift = len(beginning) - start
    size = os.fstat(descriptor).st_size
    piece = 1 << 20
    if shift:
        places = range(start, size, piece)
        for place in reversed(places) if shift > 0 else places:
            os.pwrite(descriptor, os.pread(descriptor, piece, place), place + shift)
            yield
        os.ftruncate(descriptor, size + shift)
    os.pwrite(descriptor, beginning, 0)


class Thinner:
    """Frames in, the telling ones out, in order.

    Attributes:
        left_out: records that were not passed on.
    """

    def __init__(self, level: int, write: Callable[[Frame], object]) -> None:
        self._width = WIDTHS[level]
        self._write = write
        self._pending: list[tuple[Frame, AnyRecord | None]] = []
        self._pending_bytes = 0
        self._bucket: int | None = None
        self._kept_steps: dict[int, set[int]] = {}  # of the bucket before, by optimizer
        self.left_out = 0

    def add(self, frame: Frame) -> None:
        """Take in the next frame."""
        if frame.source == OWN:
            return
        record = _decoded(frame) if frame.kind in DETAIL else None
        if isinstance(record, Step) and record.optimizer == _PRIMARY:
            bucket = record.step // self._width
            if self._bucket is not None and bucket != self._bucket:
                self._flush()
            self._bucket = bucket
        self._pending.append((frame, record))
        self._pending_bytes += len(frame.payload)
        if len(self._pending) >= MAX_PENDING or self._pending_bytes >= MAX_PENDING_BYTES:
            self._flush()

    def close(self) -> None:
        """Pass on what is kept of the last bucket."""
        self._flush()

    def _flush(self) -> None:
        keep = self._kept()
        for place, (frame, record) in enumerate(self._pending):
            if record is None or place in keep:
                self._write(frame)
            else:
                self.left_out += 1
        self._pending.clear()
        self._pending_bytes = 0

    def _kept(self) -> set[int]:
        """Places in `_pending` of the records that stay, of those that may go."""
        stats: dict[tuple[int, int], DeviceStats] = {}
        steps: dict[int, list[tuple[int, Step]]] = {}
        others: list[tuple[int, AnyRecord]] = []
        for place, (_, record) in enumerate(self._pending):
            if isinstance(record, Step):
                steps.setdefault(record.optimizer, []).append((place, record))
            elif isinstance(record, DeviceStats):
                stats[record.optimizer, record.step] = record
            elif record is not None:
                others.append((place, record))
        keep = _telling_others(others)
        before, self._kept_steps = self._kept_steps, {}
        for optimizer, mine in steps.items():
            chosen = _telling_steps(mine, stats)
            keep |= chosen
            self._kept_steps[optimizer] = {step.step for place, step in mine if place in chosen}
        for place, (_, record) in enumerate(self._pending):
            if isinstance(record, DeviceStats):
                of = record.optimizer
                known = self._kept_steps.get(of, set()) | before.get(of, set())
                if record.step in known or is_bad(record):
                    keep.add(place)
        return keep


def is_bad(record: Step | DeviceStats) -> bool:
    """Whether a step is one that no thinning may lose: not finite, left out, or found out."""
    values = (record.loss, record.loss_sum, record.grad_norm, record.grad_norm_clipped)
    if any(value is not None and not math.isfinite(value) for value in values):
        return True
    if record.flags and len(record.flags.translate(None, _BAD_FLAGS)) != len(record.flags):
        return True
    if isinstance(record, DeviceStats):
        return bool(record.found_inf)
    return bool(record.bad or record.bad_total or record.skipped or record.left_out)


def _telling_steps(
    steps: list[tuple[int, Step]], stats: dict[tuple[int, int], DeviceStats]
) -> set[int]:
    """Places of the steps of a bucket that stay."""
    keep = {steps[-1][0]} | {place for place, step in steps if is_bad(step)}
    late = [stats.get((step.optimizer, step.step)) for _, step in steps]
    for name in ("loss", "grad_norm", "step_s"):
        values = [
            _figure(name, step, device) for (_, step), device in zip(steps, late, strict=True)
        ]
        known = [
            (value, place)
            for value, (place, _) in zip(values, steps, strict=True)
            if value is not None and math.isfinite(value)
        ]
        if known:
            keep |= {max(known)[1]} | ({min(known)[1]} if name != "step_s" else set())
    worst = _worst_layer([s for _, s in steps], late)
    return keep if worst is None else keep | {steps[worst][0]}


def _figure(name: str, step: Step, device: DeviceStats | None) -> float | None:
    own = loss_of(step) if name == "loss" else getattr(step, name)
    if own is None and device is not None and name != "step_s":
        own = loss_of(device) if name == "loss" else getattr(device, name)
    return own if own is None else float(own)


def _worst_layer(steps: list[Step], late: list[DeviceStats | None]) -> int | None:
    """The step at which one layer exceeds its own mean of the bucket the most."""
    rows: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
    places: list[int] = []
    for place, step in enumerate(steps):
        source = step if step.norms else late[place]
        if source is None or not source.norms or len(source.norms) % 4:
            continue
        row = np.frombuffer(source.norms, "<f4")
        if rows and len(row) != len(rows[0]):
            continue
        if len(source.flags) == len(row):
            missing = np.frombuffer(source.flags, np.uint8) & (NO_GRAD | UNMEASURED)
            row = np.where(missing != 0, np.float32(0), row)
        rows.append(row)
        places.append(place)
    if len(rows) < 3:
        return None
    norms = np.nan_to_num(np.stack(rows), nan=0.0, posinf=0.0, neginf=0.0)
    usual = norms.mean(axis=0, dtype=np.float64).astype(np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        excess = np.where(usual > 0, norms / np.maximum(usual, np.float32(1e-38)), 0)
    return places[int(excess.max(axis=1).argmax())]


def _telling_others(records: list[tuple[int, AnyRecord]]) -> set[int]:
    """Places of what stays of readings, samples, output and logged values."""
    keep: set[int] = set()
    counts: dict[tuple[int, str], int] = {}
    extremes: dict[str, dict[str, tuple[float, int]]] = {}
    for place, record in reversed(records):
        if isinstance(record, Scalars):
            keep |= _new_extremes(record, place, extremes)
            continue
        if isinstance(record, Batch) and record.why != "sample":
            keep.add(place)
            continue
        name = record.device if isinstance(record, Memory) else ""
        name = f"{record.what} {record.name}" if isinstance(record, Histogram) else name
        tag = int(type(record).__struct_config__.tag)  # type: ignore[arg-type]
        counts[tag, name] = counts.get((tag, name), 0) + 1
        if counts[tag, name] <= _NEWEST.get(tag, 1):
            keep.add(place)
    for found in extremes.values():
        keep |= {place for _, place in found.values()}
    return keep


def _new_extremes(
    record: Scalars, place: int, extremes: dict[str, dict[str, tuple[float, int]]]
) -> set[int]:
    """Note the smallest, largest and newest value of each key; the places of what is not finite."""
    bad = set()
    for key, value in record.values.items():
        found = extremes.setdefault(key, {"last": (value, place)})
        if not math.isfinite(value):
            bad.add(place)
            continue
        if value < found.get("low", (math.inf, 0))[0]:
            found["low"] = value, place
        if value > found.get("high", (-math.inf, 0))[0]:
            found["high"] = value, place
    return bad


def _decoded(frame: Frame) -> AnyRecord | None:
    try:
        return decode(frame.payload)
    except (msgspec.DecodeError, ValueError):
        return None
