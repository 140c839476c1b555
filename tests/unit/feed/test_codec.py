"""Records on the wire: golden bytes, non-finite numbers, and peers of other ages."""

from __future__ import annotations

import contextlib
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuimon.feed.codec import decode, encode
from tuimon.model.records import BadTensor, Event, Goodbye, Step, System


@pytest.mark.parametrize(
    ("record", "golden"),
    [
        (Goodbye("ok", 0, "", 4, 1.5), "960da26f6b00a004cb3ff8000000000000"),
        (
            Event(None, 0.0, "info", "pause", "p"),
            "9907c0cb0000000000000000a4696e666fa57061757365a170a0c0c0",
        ),
    ],
)
def test_golden_bytes(record: Goodbye | Event, golden: str) -> None:
    assert encode(record).hex() == golden
    assert decode(bytes.fromhex(golden)) == record


@given(st.floats(allow_nan=False), st.none() | st.floats(allow_nan=False))
def test_numbers_survive_exactly(loss: float, norm: float | None) -> None:
    back = decode(encode(Step(step=0, time_ns=0, loss=loss, grad_norm=norm)))
    assert isinstance(back, Step)
    assert (back.loss, back.grad_norm) == (loss, norm)


def test_nan_is_nan_and_none_is_none_on_the_wire() -> None:
    back = decode(encode(Step(step=7, time_ns=255, loss=math.nan)))
    assert isinstance(back, Step)
    assert back.loss is not None and math.isnan(back.loss)
    assert back.grad_norm is None


def test_a_newer_peer_may_append_fields() -> None:
    longer = msgspec.msgpack.encode([13, "ok", 0, "", None, 0.0, "a field of tomorrow"])
    assert decode(longer) == Goodbye("ok", 0)


def test_an_older_peer_may_send_fewer_fields() -> None:
    assert decode(msgspec.msgpack.encode([10, 2.5])) == System(time_s=2.5)


@given(st.binary(max_size=200))
def test_garbage_never_does_more_than_raise(payload: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        decode(payload)


def test_a_record_of_tomorrow_is_an_error_to_count() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode([200, 1, 2]))


def test_exact_counts_travel() -> None:
    bad = BadTensor("gradient", "0.weight", nan=3, posinf=0, neginf=1, numel=12)
    back = decode(encode(Step(step=1, time_ns=2, bad=[bad], bad_total=9)))
    assert isinstance(back, Step)
    assert back.bad == [bad]
