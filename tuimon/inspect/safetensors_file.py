"""A safetensors file: its header is judged before a byte of a tensor is believed.

The layout is that of the format's specification: eight bytes of length, a JSON header, the bytes of
the tensors without a hole or an overlap. Tensors are read in pieces, not mapped, so that a file
that shrinks meanwhile is an error and no signal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
import numpy as np

from tuimon.feed import private
from tuimon.inspect.checkpoint import Stored, Unreadable
from tuimon.inspect.dtypes import DTYPES, SAFETENSORS
from tuimon.inspect.statistics import PIECE_BYTES, Measured, Raw, Read, measure
from tuimon.model.text import plain

MAX_HEADER_BYTES = 100_000_000  # the limit of the format itself
_LENGTH_BYTES = 8
_NAME_CHARS = 60  # of a stranger's text in an error
_Decoded = TypeVar("_Decoded")


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class SafetensorsFile:
    """An open safetensors file."""

    def __init__(self, path: Path) -> None:
        """Open it and judge its header.

        Raises:
            Unreadable: it is none, it is cut short, or its header contradicts itself.
            OSError: it cannot be opened or read.
        """
        self._file = private.open_reading(path, follows=True)
        try:
            self.tensors, self._offsets = read_header(self._file)
        except BaseException:
            self._file.close()
            raise
        self.notes: list[str] = []
        self._piece = np.empty(PIECE_BYTES, np.uint8)

    def measure(self, index: int) -> Measured:
        """The statistics of one tensor."""
        stored = self.tensors[index]
        return measure(stored.name, stored.dtype, stored.shape, self.read(index))

    def read(self, index: int) -> Read:
        """The bytes of one tensor."""
        self._file.seek(self._offsets[index])
        return self._next

    def _next(self, size: int) -> Raw:
        view = self._piece[:size]
        try:
            got = self._file.readinto(view)  # type: ignore[attr-defined]
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror}") from error
        if got != size:
            raise Unreadable("became shorter while it was read")
        return view

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def read_header(file: BinaryIO) -> tuple[list[Stored], list[int]]:
    """(tensors in order of their place, where in the file each begins).

    Raises:
        Unreadable: what the header says cannot be true of this file.
    """
    size = file.seek(0, 2)
    file.seek(0)
    prefix = file.read(_LENGTH_BYTES)
    if len(prefix) < _LENGTH_BYTES:
        raise Unreadable(f"has {size} bytes: no safetensors file is so short")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise Unreadable(f"claims a header of {length:,} bytes: no safetensors file, or damaged")
    if _LENGTH_BYTES + length > size:
        raise Unreadable(f"is cut short within its header: {size:,} bytes are there")
    entries = _entries(file.read(length))
    start = _LENGTH_BYTES + length
    stored = sorted(
        ((entry.data_offsets, name, entry) for name, entry in entries.items()),
        key=lambda each: each[:2],
    )
    tensors = [_stored(name, entry) for _, name, entry in stored]
    _check_places(tensors, [offsets for offsets, _, _ in stored], size - start)
    return tensors, [start + offsets[0] for offsets, _, _ in stored]


def _entries(header: bytes) -> dict[str, _Entry]:
    fields = _decoded(lambda: msgspec.json.decode(header, type=dict[str, msgspec.Raw]))
    fields.pop("__metadata__", None)
    return {
        name: _decoded(lambda raw=raw: msgspec.json.decode(raw, type=_Entry), name)  # type: ignore[misc]
        for name, raw in fields.items()
    }


def _decoded(decode: Callable[[], _Decoded], name: str = "") -> _Decoded:
    try:
        return decode()
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        of = f" of {plain(name, _NAME_CHARS)!r}" if name else ""
        said = plain(str(error), 100)
        raise Unreadable(f"has a header{of} that is damaged: {said}") from error


def _stored(name: str, entry: _Entry) -> Stored:
    dtype = SAFETENSORS.get(entry.dtype)
    if dtype is None:
        raise Unreadable(
            f"has a tensor {plain(name, _NAME_CHARS)!r} of an unknown dtype "
            f"{plain(entry.dtype, 20)!r}"
        )
    if any(side < 0 for side in entry.shape):
        raise Unreadable(f"has a tensor {plain(name, _NAME_CHARS)!r} with a negative shape")
    return Stored(name, DTYPES[dtype], entry.shape)


def _check_places(
    tensors: list[Stored], offsets: list[tuple[int, int]], available_bytes: int
) -> None:
    place = 0
    for stored, (begin, end) in zip(tensors, offsets, strict=True):
        said = plain(stored.name, _NAME_CHARS)
        if begin != place or end < begin:
            raise Unreadable(f"has a hole or an overlap before tensor {said!r}: damaged")
        bits = math.prod(stored.shape) * stored.dtype.bits
        if bits % 8 or bits // 8 != end - begin:
            raise Unreadable(f"gives tensor {said!r} a place that does not fit its shape: damaged")
        if end > available_bytes:
            raise Unreadable(
                f"is cut short in tensor {said!r}: {available_bytes:,} of "
                f"{max(end for _, end in offsets):,} bytes are there"
            )
        place = end
    if place != available_bytes:
        raise Unreadable(f"has {available_bytes - place:,} bytes after its last tensor: damaged")
