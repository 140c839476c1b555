"""A safetensors file is believed only where its header fits it to the byte."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from tuimon.inspect.checkpoint import Unreadable
from tuimon.inspect.safetensors_file import SafetensorsFile, read_header

GOOD = save({"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float16)})


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> io.BytesIO:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    return io.BytesIO(size.to_bytes(8, "little") + text + data)


def one(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def test_what_the_library_writes_is_read() -> None:
    tensors, places = read_header(io.BytesIO(GOOD))
    assert {each.name: (each.dtype.name, each.shape) for each in tensors} == {
        "a": ("float32", [2, 3]),
        "b": ("float16", [4]),
    }
    assert len(GOOD) - min(places) == 32


BAD = {
    "a length beyond all": file_of(b"", length=1 << 63),
    "a length beyond the file": file_of(b"{}", length=99),
    "no JSON": file_of(b"hello"),
    "no object": file_of([1, 2]),
    "nested": file_of(b'{"a":' + b"[" * 200_000),
    "a tensor that is a number": file_of({"w": 3}),
    "bytes that are no text": file_of(b'{"\xff\xfe": 1}'),
    "an unknown dtype": file_of(one("F33"), bytes(4)),
    "a negative side": file_of(one(shape=[-1]), bytes(4)),
    "sides beyond all": file_of(one(shape=[1 << 62, 1 << 62]), bytes(4)),
    "a number of a thousand digits": file_of(
        b'{"w":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', bytes(4)
    ),
    "a side that is no integer": file_of(one(shape=[1.5]), bytes(4)),
    "a place that does not fit": file_of(one(shape=[2]), bytes(4)),
    "a place beyond the file": file_of(one(shape=[4], offsets=[0, 16]), bytes(4)),
    "a hole": file_of(one(offsets=[4, 8]), bytes(8)),
    "an overlap": file_of({**one(), "v": one()["w"]}, bytes(4)),
    "a place backwards": file_of(one(offsets=[4, 0]), bytes(4)),
    "more than it says": file_of(one(), bytes(9)),
    "a name of control characters": file_of({"\x1b[2J": one()["w"], "v": 1}, bytes(4)),
}


@pytest.mark.parametrize("what", BAD)
def test_a_header_that_cannot_be_true_is_one_line(what: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read_header(BAD[what])
    assert str(refused.value).isprintable() and len(str(refused.value)) < 300


def test_a_file_cut_anywhere_is_refused() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(Unreadable):
            read_header(io.BytesIO(GOOD[:size]))


@given(st.integers(0, len(GOOD) - 33), st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_never_reads_beyond_the_file(place: int, byte: int) -> None:
    damaged = bytearray(GOOD)
    damaged[place] = byte
    try:
        tensors, places = read_header(io.BytesIO(bytes(damaged)))
    except Unreadable:
        return
    for stored, begin in zip(tensors, places, strict=True):
        assert 0 <= begin <= begin + stored.size_bytes <= len(GOOD)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_header_or_a_refusal(header: bytes) -> None:
    try:
        read_header(file_of(header, bytes(8)))
    except Unreadable as refused:
        assert str(refused).isprintable()


def test_a_file_that_shrinks_meanwhile_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(save({"w": np.ones(1 << 20, np.float32)}))
    opened = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(Unreadable, match="became shorter"):
        opened.measure(0)
    opened.close()
