"""Records to MessagePack and back. A payload that does not decode is the caller's to count."""

from __future__ import annotations

import msgspec

from tuimon.model.records import AnyRecord, Record

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


def encode(record: Record) -> bytes:
    """MessagePack bytes of `record`; NaN and Inf survive."""
    return _encoder.encode(record)


def decode(payload: bytes) -> AnyRecord:
    """The record in `payload`.

    Raises:
        msgspec.DecodeError: not a record this version knows (its subclass ValidationError
            when the bytes are MessagePack of another shape or a newer tag).
    """
    return _decoder.decode(payload)
