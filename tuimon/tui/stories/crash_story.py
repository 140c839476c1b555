"""A crash told in lines: the exception, its place, the frames, and the tensors that stood there."""

from __future__ import annotations

import os

from tuimon.model.batches import TensorSummary
from tuimon.model.crash import Crash, MemoryFigures
from tuimon.model.text import plain
from tuimon.model.units import count, number, percent, size_bytes
from tuimon.tui.stories.lines import LABEL, Line, Part, heading, pair, place_lines, table

_PHASES = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the update",
    "data": "while data were loaded",
    "other": "outside of forward, backward and update",
}


def crash_lines(crash: Crash) -> list[Line]:
    """All that was found on the way down the traceback."""
    lines = heading("exception", _PHASES.get(crash.phase, ""))
    lines.append(Line(((plain(crash.kind, 100), "strong"),), "what"))
    if crash.message:
        lines.append(pair("message", crash.message, limit=2000))
    if crash.cause:
        lines.append(pair("from", crash.cause, limit=1000))
    if crash.op:
        lines.append(pair("operation", crash.op))
    module = crash.module or "the model"
    kind = f" ({crash.module_type})" if crash.module_type else ""
    lines.append(pair("module", module + kind if crash.in_model else "outside of the model"))
    if crash.place is not None:
        place = crash.place
        lines += place_lines(place.file, place.line, place.function, place.source)
    if crash.library:
        lines.append(pair("raised in", crash.library, "dim"))
    return lines + _frames(crash) + _tensors(crash) + _memory(crash) + _notes(crash)


def _frames(crash: Crash) -> list[Line]:
    if len(crash.frames) < 2:
        return []
    rows: list[list[Part]] = [
        [
            (plain(f"{os.path.basename(frame.file)}:{frame.line}", 60), "key"),
            (plain(frame.function, 40), "dim"),
            (plain(frame.source, 200), "text"),
        ]
        for frame in crash.frames
    ]
    return heading("frames", "the script's own, outermost first") + table(rows)


def _tensors(crash: Crash) -> list[Line]:
    if not crash.inputs:
        return []
    rows = [_tensor(each) for each in crash.inputs]
    return heading("tensors", "nearest to the failing line first") + table(
        rows, right=frozenset({3})
    )


def _tensor(tensor: TensorSummary) -> list[Part]:
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    dtype = f"{tensor.dtype.removeprefix('torch.')} {tensor.device}"
    if tensor.low is not None and tensor.high is not None:
        span = f"{number(tensor.low)} … {number(tensor.high)}"
    else:
        span = tensor.why_not or ("no finite value" if tensor.looked_at else "not looked at")
    kinds = (("NaN", tensor.nan), ("+Inf", tensor.posinf), ("-Inf", tensor.neginf))
    bad = ", ".join(f"{word} {count(found)}" for word, found in kinds if found)
    zeros = f"zeros {percent(tensor.zero_frac)}" if tensor.zero_frac else ""
    tail = "  ".join(part for part in (bad, zeros) if part)
    return [
        (plain(tensor.name, 40), "text"),
        (shape, "text"),
        (plain(dtype, 30), "dim"),
        (plain(span, 60), "text"),
        (tail, "bad" if bad else "dim"),
    ]


def _memory(crash: Crash) -> list[Line]:
    if not crash.memory:
        return []
    lines = heading("memory", "it ran out" if crash.out_of_memory else "")
    return lines + [pair(each.device[: LABEL - 1], _figures(each)) for each in crash.memory]


def _figures(memory: MemoryFigures) -> str:
    figures = (
        ("asked for", memory.asked_bytes),
        ("allocated", memory.allocated_bytes),
        ("reserved", memory.reserved_bytes),
        ("peak", memory.peak_bytes),
        ("of", memory.total_bytes),
    )
    return ", ".join(f"{word} {size_bytes(size)}" for word, size in figures if size is not None)


def _notes(crash: Crash) -> list[Line]:
    if not crash.notes:
        return []
    return heading("notes") + [Line(((plain(note), "dim"),)) for note in crash.notes]
