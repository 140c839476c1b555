"""A ring of records in a plain file: one process writes, any number read, nobody waits.

The file has a header page and a data area. A record starts at a multiple of 64 bytes, never
straddles the end, and carries magic, length, sequence, kind and a CRC-32 over all of them and
the payload. The CRC is computed over immutable bytes before the copy, so a reader on any memory
model accepts a record only when it is complete: a mismatch at the head means "not yet", behind
it "overrun". The words of the header are hints and may be stale.

Writers: threads of the creating process, one at a time under `RingWriter._lock`, which is held
for the copy only. Readers map the file read-only and take no lock.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path
from time import time_ns
from zlib import crc32

import msgspec

from tuimon.errors import IncompatibleVersion, NoRoom, NoSuchRun
from tuimon.feed import private
from tuimon.model.records import FORMAT_VERSION, RUNNING

FILE_MAGIC = b"TUIMONRB"
HEADER_BYTES = 4096
ALIGN = 64
RECORD_MAGIC = 0x52495554  # "TUIR"
MAGIC_BYTES = struct.pack("<I", RECORD_MAGIC)
DATA, PAD = 0, 1
_RECORD = struct.Struct("<IIQII")  # magic, length, sequence, kind, crc
_CHECKED = struct.Struct("<IQI")  # length, sequence, kind
_PREFIX = struct.Struct("<8sIIQQQ")  # magic, version, header size, capacity, pid, start ticks
# Word indices of the hints behind the prefix, in units of 8 bytes; the first five are written
# together after each record.
_HEAD, _NEXT, _BEAT, _STATE, _STEP, _CHANGED, _DROPPED = 5, 6, 7, 8, 9, 10, 11
_AFTER_RECORD = struct.Struct("<QQQQQ")
_AFTER_RECORD_AT = _HEAD * 8
# Maps every page at once: the first lap would otherwise fault on each, at 0.5 µs or more.
_MAP_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
NO_STEP = (1 << 64) - 1
# `publish` runs once a step in the training: what it calls is looked up once.
_pack_record, _pack_checked = _RECORD.pack_into, _CHECKED.pack
_pack_after = _AFTER_RECORD.pack_into
_RECORD_BYTES = _RECORD.size
_OVERHEAD = _RECORD_BYTES + ALIGN - 1  # of a record with what rounds its end up


def _crc(length: int, sequence: int, kind: int, payload: bytes) -> int:
    return crc32(payload, crc32(_CHECKED.pack(length, sequence, kind)))


class RingWriter:
    """The writing end. `publish` and `set_state` never raise and never wait for a reader.

    Attributes:
        step: the newest step; whoever publishes sets it, and the next record takes it along.
    """

    def __init__(self, path: Path, view: mmap.mmap, capacity: int) -> None:
        self.path = path
        self.dropped = 0
        self.step = NO_STEP
        self._state = RUNNING
        self._map = view
        self._words = memoryview(view)[:HEADER_BYTES].cast("Q")
        self._capacity = capacity
        self._largest = capacity // 2  # bytes of a record; none fits a closed ring
        self._head = 0
        self._sequence = 1
        self._lock = threading.Lock()
        self._forked = False
        os.register_at_fork(after_in_child=self._abandon)

    @classmethod
    def create(cls, path: Path, capacity: int, *, start_ticks: int = 0) -> RingWriter:
        """Make the file with all its blocks, so that a full disk cannot fault a later write.

        Raises:
            NoRoom: the file cannot be made or its blocks are not there.
        """
        capacity -= capacity % ALIGN
        size = HEADER_BYTES + capacity
        temporary: Path | None = None
        try:
            fd, temporary = private.draft_of(path)
            try:
                _allocate(fd, size)
                view = mmap.mmap(fd, size, flags=_MAP_FLAGS)
            finally:
                os.close(fd)
            _PREFIX.pack_into(
                view,
                0,
                FILE_MAGIC,
                FORMAT_VERSION,
                HEADER_BYTES,
                capacity,
                os.getpid(),
                start_ticks,
            )
            writer = cls(path, view, capacity)
            writer._words[_NEXT] = 1
            writer.set_state(RUNNING, None)
            os.rename(temporary, path)
        except OSError as error:
            if temporary is not None:
                temporary.unlink(missing_ok=True)
            raise NoRoom(f"no room for {size >> 10} KiB at {path}: {error.strerror}") from error
        return writer

    def publish(self, payload: bytes) -> bool:
        """Append one record; False when it cannot be (too large, closed, or a forked child)."""
        if self._forked:
            return False
        length = len(payload)
        need = (length + _OVERHEAD) // ALIGN * ALIGN
        with self._lock:
            view, capacity, head = self._map, self._capacity, self._head
            if need > self._largest:
                self._count_dropped()
                return False
            offset = head % capacity
            if need > capacity - offset:
                self._pad(capacity - offset)
                head, offset = self._head, 0
            sequence = self._sequence
            crc = crc32(payload, crc32(_pack_checked(length, sequence, DATA)))
            place = HEADER_BYTES + offset
            start = place + _RECORD_BYTES
            view[start : start + length] = payload
            _pack_record(view, place, RECORD_MAGIC, length, sequence, DATA, crc)
            self._head = head = head + need
            self._sequence = sequence = sequence + 1
            _pack_after(view, _AFTER_RECORD_AT, head, sequence, time_ns(), self._state, self.step)
        return True

    def set_state(self, state: int, step: int | None) -> None:
        """Write the state word and the newest step, which readers may poll without records."""
        if self._forked:
            return
        with self._lock:
            if self._map.closed:
                return
            if self._words[_STATE] != state or not self._words[_CHANGED]:
                self._words[_STATE] = self._state = state
                self._words[_CHANGED] = time_ns()
            self._words[_STEP] = self.step = NO_STEP if step is None else step

    def close(self) -> None:
        """Unmap; the file stays for readers. Safe to call twice, and in a forked child."""
        if self._forked:
            return
        with self._lock:
            if not self._map.closed:
                self._largest = 0
                self._words.release()
                self._map.close()

    def _pad(self, left: int) -> None:
        """Fill what is left before the end of the data area, which no record straddles."""
        length = left - _RECORD.size
        place = HEADER_BYTES + self._head % self._capacity
        crc = _crc(length, self._sequence, PAD, b"")
        _RECORD.pack_into(self._map, place, RECORD_MAGIC, length, self._sequence, PAD, crc)
        self._head += left

    def _count_dropped(self) -> None:
        self.dropped += 1
        if not self._map.closed:
            self._words[_DROPPED] = self.dropped
            self._words[_STEP] = self.step

    def _abandon(self) -> None:
        """In a forked child, where the parent's lock may be held for ever: never write."""
        self._forked = True


def _allocate(fd: int, size: int) -> None:
    """Claim every block now: a hole in a full file system is a SIGBUS in the training."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    zeros = bytes(1 << 16)
    for start in range(0, size, len(zeros)):
        os.pwrite(fd, zeros[: size - start], start)


class RingStatus(msgspec.Struct, frozen=True):
    """The header as a reader last saw it; every word is a hint."""

    state: int
    step: int | None
    writer_pid: int
    start_ticks: int
    head: int
    next_sequence: int
    changed_ns: int  # unix time of the last change of `state`
    beat_ns: int  # unix time of the newest record, 0 before the first
    dropped: int


class RingReader:
    """A reading end with a position of its own; it never changes the file.

    Attributes:
        lost: records that were never seen, by reason: "overrun" (too slow) or "torn" (damaged).
        last_sequence: sequence of the newest record that was returned; 0 before the first.
    """

    TORN_AFTER = 3  # reads in a row that find damage before the head is believed

    def __init__(
        self, path: Path, from_sequence: int | None = None, *, at_end: bool = False
    ) -> None:
        """Start behind record `from_sequence`, at the end, or at the oldest record still there.

        Raises:
            NoSuchRun: there is no such file.
            IncompatibleVersion: it is not a ring of this format.
        """
        self.path = path
        self.lost: dict[str, int] = {}
        self.last_sequence = from_sequence or 0
        self._map, self._capacity, self._pid, self._ticks = _open(path)
        self._words = memoryview(self._map)[:HEADER_BYTES].cast("Q")
        self._damaged = 0
        self.inode = os.stat(path).st_ino
        if at_end:
            self._position, self._expected = self._words[_HEAD], self._words[_NEXT]
            self.last_sequence = self._expected - 1
        else:
            self._position, self._expected = self._find((from_sequence or 0) + 1)
            if from_sequence is not None and self._expected > from_sequence + 1:
                self._count("overrun", self._expected - from_sequence - 1)

    def status(self) -> RingStatus:
        """The hints in the header."""
        words = self._words
        step = words[_STEP]
        return RingStatus(
            state=words[_STATE],
            step=None if step == NO_STEP else step,
            writer_pid=self._pid,
            start_ticks=self._ticks,
            head=words[_HEAD],
            next_sequence=words[_NEXT],
            changed_ns=words[_CHANGED],
            beat_ns=words[_BEAT],
            dropped=words[_DROPPED],
        )

    def read(self, max_records: int = 1000, max_s: float = 0.02) -> list[bytes]:
        """Payloads of new records in order, bounded by a count and by time."""
        return [payload for _, payload in self.read_numbered(max_records, max_s)]

    def read_numbered(self, max_records: int, max_s: float) -> list[tuple[int, bytes]]:
        """The same, each with its sequence."""
        payloads: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + max_s
        while len(payloads) < max_records:
            payload = self._next()
            if payload is None:
                break
            payloads.append((self.last_sequence, payload))
            if len(payloads) % 16 == 0 and time.monotonic() > deadline:
                break
        return payloads

    def close(self) -> None:
        """Unmap. Safe to call twice."""
        if not self._map.closed:
            self._words.release()
            self._map.close()

    def _next(self) -> bytes | None:
        """The record at the position, or None when it is not there yet."""
        while True:
            found = self._look(self._position)
            if found is not None and found[0] == self._expected:
                self._damaged = 0
                sequence, kind, length, payload = found
                if kind == PAD:
                    self._position += _RECORD.size + length
                    continue
                self._position += -(-(_RECORD.size + length) // ALIGN) * ALIGN
                self._expected = sequence + 1
                self.last_sequence = sequence
                return payload
            if not self._resynchronise():
                return None

    def _resynchronise(self) -> bool:
        """Jump to the next readable record after an overrun or damage; False means "not yet"."""
        behind = self._words[_HEAD] - self._position
        if behind <= 0:
            return False
        if behind <= self._capacity:
            self._damaged += 1
            if self._damaged < self.TORN_AFTER:
                return False
            reason = "torn"
        else:
            reason = "overrun"
        self._damaged = 0
        position, sequence = self._find(self._expected)
        if sequence <= self._expected and position == self._position:
            return False
        self._count(reason, sequence - self._expected)
        self._position, self._expected = position, sequence
        return True

    def _count(self, reason: str, records: int) -> None:
        if records > 0:
            self.lost[reason] = self.lost.get(reason, 0) + records

    def _look(self, position: int) -> tuple[int, int, int, bytes] | None:
        """(sequence, kind, length, payload) of a whole record at an absolute position."""
        offset = position % self._capacity
        place = HEADER_BYTES + offset
        magic, length, sequence, kind, crc = _RECORD.unpack_from(self._map, place)
        if magic != RECORD_MAGIC or length > self._capacity - offset - _RECORD.size:
            return None
        payload = b"" if kind == PAD else self._map[place + 24 : place + 24 + length]
        if crc != _crc(length, sequence, kind, payload):
            return None
        return sequence, kind, length, payload

    def _find(self, wanted: int) -> tuple[int, int]:
        """Position and sequence of the first readable record not older than `wanted`.

        Walks from the oldest place forward. With nothing readable: the head and its sequence.
        """
        head, following = self._words[_HEAD], self._words[_NEXT]
        if wanted >= following:
            return head, following
        position = max(0, head - self._capacity)
        if position:
            # The writer is working just here: the oldest records are about to be overwritten.
            position += min(self._capacity // 16, 1 << 16) // ALIGN * ALIGN
        while position < head:
            found = self._look(position)
            if found is None or found[0] > following:
                position = self._next_magic(position + ALIGN, head)
                continue
            sequence, kind, length, _ = found
            if sequence >= wanted and kind == DATA:
                return position, sequence
            if kind == PAD:
                position += _RECORD.size + length
            else:
                position += -(-(_RECORD.size + length) // ALIGN) * ALIGN
        return head, following

    def _next_magic(self, position: int, head: int) -> int:
        """The next aligned position that begins like a record, at most `head`."""
        while position < head:
            offset = position % self._capacity
            limit = min(self._capacity, offset + head - position)
            place = self._map.find(MAGIC_BYTES, HEADER_BYTES + offset, HEADER_BYTES + limit)
            if place < 0:
                position += limit - offset
                continue
            position += place - HEADER_BYTES - offset
            if (place - HEADER_BYTES) % ALIGN == 0:
                return position
            position += ALIGN - position % ALIGN
        return head


def _open(path: Path) -> tuple[mmap.mmap, int, int, int]:
    """Map a ring read-only and check its header: (map, capacity, writer pid, start ticks)."""
    try:
        with private.open_reading(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_BYTES + ALIGN:
                raise IncompatibleVersion(f"{path} is not a ring of tuimon")
            view = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise NoSuchRun(f"{path} is gone; the run has been swept") from error
    except OSError as error:
        raise NoSuchRun(f"cannot read {path}: {error.strerror}") from error
    magic, version, header, capacity, pid, ticks = _PREFIX.unpack_from(view, 0)
    is_ring = magic == FILE_MAGIC and header == HEADER_BYTES and capacity + header <= size
    if not is_ring or capacity < ALIGN or capacity % ALIGN:
        view.close()
        raise IncompatibleVersion(f"{path} is not a ring of tuimon")
    if version != FORMAT_VERSION:
        view.close()
        raise IncompatibleVersion(
            f"{path} has format {version}, this tuimon reads {FORMAT_VERSION}; "
            "use the tuimon that the training uses"
        )
    return view, capacity, pid, ticks
