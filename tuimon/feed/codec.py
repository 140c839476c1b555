"""Records to MessagePack and back. A payload that does not decode is the caller's to count."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec

from tuimon.model.records import AnyRecord, Record

# MessagePack bytes of a record; NaN and Inf survive. The method itself: it runs at every step.
encode: Callable[[Record], bytes] = msgspec.msgpack.Encoder().encode


def decode(payload: bytes) -> AnyRecord:
    """The record in `payload`.

    Raises:
        msgspec.DecodeError: not a record this version knows (its subclass ValidationError
            when the bytes are MessagePack of another shape or a newer tag).
    """
    return _decoder().decode(payload)


@cache
def _decoder() -> msgspec.msgpack.Decoder[AnyRecord]:
    """Made for all kinds of records at once, which takes long: where something is read."""
    return msgspec.msgpack.Decoder(AnyRecord)
