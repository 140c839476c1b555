"""Frames of a recording: how one record lies in a file, and how a damaged file is still read.

A frame is a head of 36 bytes and a payload. The head has a checksum of its own, so that a damaged
length is never believed and a damaged payload costs one record. Owns no file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import msgspec

FILE_MAGIC = b"TUIMONRC"
FRAME_MAGIC = 0x46495554  # "TUIF"
MAGIC_BYTES = struct.pack("<I", FRAME_MAGIC)
MAX_PAYLOAD_BYTES = 64 << 20  # a checkpoint of the widest run; a record has at most 8 MiB
# Magic, payload bytes, ordinal, sequence in its source, source, kind, CRC-32 of the payload.
_HEAD = struct.Struct("<IIQQHHI")
_CRC = struct.Struct("<I")  # of the head
HEAD_BYTES = _HEAD.size + _CRC.size

# Sources of a frame.
TRAINER = 0
SCRIBE = 1
OWN = 2  # of the recording itself: no record

# Kinds: the tag of the record, or one of these.
KIND_UNKNOWN = 0
KIND_HEAD = 0x7FFE
KIND_CHECKPOINT = 0x7FFF
_PACKED = 0x8000  # or-ed: the payload is compressed

_CHUNK_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 10
TORN, DAMAGED = "torn", "damaged"


class Frame(NamedTuple):
    """One whole frame, its payload as it was given."""

    ordinal: int  # counts from 1 in the recording of a process
    sequence: int  # in the ring of its source
    source: int
    kind: int
    payload: bytes


class Damage(msgspec.Struct):
    """What could not be read: `torn` is the end of a file, `damaged` what lies before the end.

    Attributes:
        torn, damaged: stretches of bytes that are no whole frames.
    """

    torn: int = 0
    damaged: int = 0


def packed(frame: Frame, *, compress: bool = False) -> bytes:
    """The bytes of a frame; compressed only where that saves a tenth."""
    payload, kind = frame.payload, frame.kind
    if compress and _seems_compressible(payload):
        smaller = zlib.compress(payload, 1)
        if len(smaller) < 0.9 * len(payload):
            payload, kind = smaller, kind | _PACKED
    head = _HEAD.pack(
        FRAME_MAGIC,
        len(payload),
        frame.ordinal,
        frame.sequence,
        frame.source,
        kind,
        zlib.crc32(payload),
    )
    return b"".join((head, _CRC.pack(zlib.crc32(head)), payload))


def _seems_compressible(payload: bytes) -> bool:
    """By its middle: norms of healthy steps are noise, and trying takes its time."""
    middle = payload[len(payload) // 2 :][:_SAMPLE_BYTES]
    return len(payload) > 200 and len(zlib.compress(middle, 1)) < 0.9 * len(middle)


def kind_of(payload: bytes) -> int:
    """The tag of an encoded record: the first element of its MessagePack array."""
    first = payload[0] if payload else 0
    at = 1 if 0x90 <= first <= 0x9F else 3 if first == 0xDC else None
    if at is None or at >= len(payload) or payload[at] > 0x7F:
        return KIND_UNKNOWN
    return payload[at]


def frames_of(file: BinaryIO, damage: Damage, behind: int = 0) -> Iterator[Frame]:
    """All whole frames from the present position on, in order; never raises over their content.

    Memory is bounded by the largest frame. What is no whole frame is counted in `damage`. Records
    up to the ordinal `behind` come without their payload, which is not looked at.
    """
    window = _Window(file)
    newest = 0
    while window.has(HEAD_BYTES):
        head = _head_at(window)
        if head is None or head[2] < newest:
            at_end = not _resynchronise(window)
            damage.torn += at_end
            damage.damaged += not at_end
            continue
        _, length, ordinal, sequence, source, kind, checksum = head
        if not window.has(HEAD_BYTES + length):
            damage.torn += 1
            return
        if 0 < ordinal <= behind:
            window.skip(HEAD_BYTES + length)
            newest = ordinal
            yield Frame(ordinal, sequence, source, kind & ~_PACKED, b"")
            continue
        payload = window.take(HEAD_BYTES + length)[HEAD_BYTES:]
        whole = _unpacked(payload, kind) if zlib.crc32(payload) == checksum else None
        if whole is None:
            damage.damaged += 1
            continue
        newest = ordinal
        yield Frame(ordinal, sequence, source, kind & ~_PACKED, whole)
    damage.torn += window.has(1)


def _head_at(window: _Window) -> tuple[int, ...] | None:
    head = window.peek(HEAD_BYTES)
    fields = _HEAD.unpack_from(head)
    if fields[0] != FRAME_MAGIC or fields[1] > MAX_PAYLOAD_BYTES:
        return None
    if _CRC.unpack_from(head, _HEAD.size)[0] != zlib.crc32(head[: _HEAD.size]):
        return None
    return fields


def _resynchronise(window: _Window) -> bool:
    """Move behind what is damaged, to the next head; False at the end of the file."""
    window.skip(1)
    while window.find(MAGIC_BYTES):
        if not window.has(HEAD_BYTES):
            break
        if _head_at(window) is not None:
            return True
        window.skip(1)
    window.skip_all()
    return False


def _unpacked(payload: bytes, kind: int) -> bytes | None:
    if not kind & _PACKED:
        return payload
    inflater = zlib.decompressobj()
    try:
        whole = inflater.decompress(payload, MAX_PAYLOAD_BYTES)
    except zlib.error:
        return None
    return whole if inflater.eof else None


class _Window:
    """A sliding window over a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._bytes = bytearray()
        self._at = 0
        self._is_over = False

    def has(self, size: int) -> bool:
        """Whether so many bytes follow."""
        while len(self._bytes) - self._at < size and not self._is_over:
            del self._bytes[: self._at]
            self._at = 0
            chunk = self._file.read(max(_CHUNK_BYTES, size - len(self._bytes)))
            self._is_over = not chunk
            self._bytes += chunk
        return len(self._bytes) - self._at >= size

    def peek(self, size: int) -> bytes:
        return bytes(self._bytes[self._at : self._at + size])

    def take(self, size: int) -> bytes:
        taken = self.peek(size)
        self._at += size
        return taken

    def skip(self, size: int) -> None:
        self._at += size

    def skip_all(self) -> None:
        self._at = len(self._bytes)
        while self.has(1):
            self._at = len(self._bytes)

    def find(self, wanted: bytes) -> bool:
        """Move to the next place that begins so; False, at the end, where there is none."""
        while True:
            place = self._bytes.find(wanted, self._at)
            if place >= 0:
                self._at = place
                return True
            self._at = max(self._at, len(self._bytes) - len(wanted) + 1)
            if not self.has(len(wanted)):
                return False
