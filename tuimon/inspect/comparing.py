"""What changed between two checkpoints, tensor by tensor; both are read in step, piece by piece."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuimon.inspect.checkpoint import Checkpoint, Stored, Unreadable
from tuimon.inspect.dtypes import DType, values
from tuimon.inspect.places import Place, places_of
from tuimon.inspect.scan import Scanner
from tuimon.inspect.statistics import Raw, Read
from tuimon.model.text import plain
from tuimon.model.units import json_number

SCHEMA = "tuimon.scan-diff/1"
_ELEMENTS = 1 << 15  # of a piece: 256 KiB in double precision


class Change(msgspec.Struct):
    """One tensor that is in both.

    Attributes:
        max_abs: the largest change of an element; None where nothing can be subtracted.
        relative: norm of the change over the norm of the first; None where that is 0.
        non_finite: elements that are NaN or Inf in (the first, the second).
        became: what the second has in place of dtype or shape; "" where they are the same.
    """

    name: str
    dtype: str
    shape: list[int]
    max_abs: float | None = None
    relative: float | None = None
    non_finite: tuple[int, int] = (0, 0)
    became: str = ""

    @property
    def is_change(self) -> bool:
        """Whether anything is different."""
        return bool(self.max_abs or self.became or self.non_finite[0] != self.non_finite[1])


@dataclass
class Difference:
    """What became of one checkpoint in another."""

    first: str
    second: str
    changes: list[Change] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # in the second
    added: list[str] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether both hold the same numbers under the same names."""
        changed = any(each.is_change for each in self.changes)
        return not (changed or self.missing or self.added)


@dataclass(frozen=True)
class _Held:
    """A tensor, and the open file that it is in."""

    checkpoint: Checkpoint
    index: int

    @property
    def stored(self) -> Stored:
        return self.checkpoint.tensors[self.index]


def difference(first: str, second: str, *, trusts_files: bool = False) -> Difference:
    """Compare two checkpoints: files, indexes of shards, or folders.

    Raises:
        Unreadable: one of them cannot be read; the text names it.
    """
    found = Difference(first, second)
    with contextlib.ExitStack() as stack:
        # Each side has its own reader: bytes of both are taken in turn.
        olds = _held(first, stack.enter_context(Scanner(trusts_files=trusts_files)), stack)
        news = _held(second, stack.enter_context(Scanner(trusts_files=trusts_files)), stack)
        found.missing = [name for name in olds if name not in news]
        found.added = [name for name in news if name not in olds]
        for name, old in olds.items():
            if name in news:
                try:
                    found.changes.append(_change(old, news[name]))
                except Unreadable as error:
                    raise Unreadable(f"{plain(name, 60)!r} {error}") from error
    return found


def _held(path: str, scanner: Scanner, stack: contextlib.ExitStack) -> dict[str, _Held]:
    places = places_of(Path(path))
    held: dict[str, _Held] = {}
    for place in places:
        try:
            if place.problem:
                raise Unreadable(place.problem)
            checkpoint = stack.enter_context(scanner.opened(place.path))
        except Unreadable as error:
            raise Unreadable(f"{place.path} {error}") from error
        for index, stored in enumerate(checkpoint.tensors):
            held[_name(place, stored.name, held)] = _Held(checkpoint, index)
    return held


def _name(place: Place, name: str, held: dict[str, _Held]) -> str:
    """Tensors of different files may have the same name: those of an optimizer and a model."""
    return name if name not in held else f"{place.path.name}: {name}"


def _change(old: _Held, new: _Held) -> Change:
    a, b = old.stored, new.stored
    change = Change(a.name, a.dtype.name, a.shape)
    became = [b.dtype.name] if a.dtype != b.dtype else []
    became += [f"{b.shape}"] if a.shape != b.shape else []
    change.became = " ".join(became)
    if a.shape != b.shape or not a.dtype.numpy or not b.dtype.numpy:
        return change
    reads = old.checkpoint.read(old.index), new.checkpoint.read(new.index)
    elements = math.prod(a.shape) * (2 if a.dtype.name.startswith("complex") else 1)
    if a.dtype.name.startswith("complex") != b.dtype.name.startswith("complex"):
        return change
    _subtract(change, (a.dtype, b.dtype), reads, elements)
    return change


def _subtract(
    change: Change, dtypes: tuple[DType, DType], reads: tuple[Read, Read], elements: int
) -> None:
    largest = 0.0
    old_norm = new_norm = 0.0  # by hypot, which neither overflows nor vanishes
    bad = [0, 0]
    for done in range(0, elements, _ELEMENTS):
        length = min(_ELEMENTS, elements - done)
        a, b = (_numbers(t, read, length) for t, read in zip(dtypes, reads, strict=True))
        finite_a, finite_b = np.isfinite(a), np.isfinite(b)
        bad[0] += int(np.count_nonzero(~finite_a))
        bad[1] += int(np.count_nonzero(~finite_b))
        both = finite_a & finite_b
        if not both.all():
            a, b = a[both], b[both]
        if not len(a):
            continue
        with np.errstate(all="ignore"):
            moved = b - a
            largest = max(largest, float(np.abs(moved).max()))
            old_norm = math.hypot(old_norm, float(np.linalg.norm(a)))
            new_norm = math.hypot(new_norm, float(np.linalg.norm(moved)))
    change.non_finite = (bad[0], bad[1])
    change.max_abs = largest
    change.relative = new_norm / old_norm if old_norm else None


def _numbers(dtype: DType, read: Read, length: int) -> NDArray[np.float64]:
    halves = 2 if dtype.name.startswith("complex") else 1
    raw: Raw = read(length * dtype.bits // 8 // halves)
    if dtype.is_counted:
        looked_up: NDArray[np.float64] = values(dtype)[raw.view(f"<u{dtype.bits // 8}")]
        return looked_up
    return raw.view(dtype.numpy).astype(np.float64)


def difference_object(found: Difference, *, with_all: bool = False) -> dict[str, Any]:
    """The JSON object of a comparison: schema `tuimon.scan-diff/1`."""
    return {
        "schema": SCHEMA,
        "same": found.is_same,
        "first": found.first,
        "second": found.second,
        "missing": found.missing,
        "added": found.added,
        "changes": [
            {
                **msgspec.to_builtins(each),
                "max_abs": json_number(each.max_abs),
                "relative": json_number(each.relative),
            }
            for each in found.changes
            if with_all or each.is_change
        ],
    }
