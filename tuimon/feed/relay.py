"""The relay: what a run folder offers, spoken over stdin and stdout of a process on its host.

The relay greets with a mark and an `Offer`; the viewer answers with `Begin`; then come the run,
its history once, and records as they appear. Frames carry magic, length and CRC-32. The relay
blocks in writing to a slow pipe and nowhere else: what the ring overran meanwhile is counted and
told. A thread of its own reads the viewer's requests, so that a full pipe does not hold them up.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from tuimon import __version__
from tuimon.errors import IncompatibleVersion, NoSuchRun, Refused, TuimonError
from tuimon.feed import asking
from tuimon.feed.codec import encode
from tuimon.feed.output import OutputTail
from tuimon.feed.registry import ExitInfo, RunInfo
from tuimon.feed.tail import DRAINED_AFTER, Pulse, RingTail, in_parts
from tuimon.model.commands import Request
from tuimon.model.records import FORMAT_VERSION, RUNNING, CommandState
from tuimon.model.stages import stage_of

PROTOCOL = 1  # of the messages below; `Offer` and `Begin` begin the same for ever
GREETING = b"\n\x00tuimon relay\x00\xff"  # no banner of a login shell contains it
MAX_BANNER_BYTES = 64 << 10
MAX_FRAME_BYTES = 16 << 20  # twice the largest record of the largest ring
MAX_HISTORY_BYTES = 256 << 20
BATCH_RECORDS, BATCH_BYTES, BATCH_S = 500, 256 << 10, 0.02
PART_BYTES = 1 << 20
BEAT_S = 0.5  # a viewer knows by it that the relay lives
IDLE_S = 0.03
LEAVE_S = 2.0  # for a write that nobody reads any more
_FRAME = struct.Struct("<4sII")  # magic, length, crc
_MAGIC = b"TUIW"


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of everything that travels; fields are only appended."""


class Offer(Message, frozen=True, array_like=True, tag=1):
    """The relay's first word: what it speaks."""

    protocol: int
    format_version: int
    tuimon: str


class Mark(Message, frozen=True, array_like=True):
    """How far a ring has been read; inode 0 is whichever file is there."""

    sequence: int
    inode: int = 0


class Begin(Message, frozen=True, array_like=True, tag=2):
    """The viewer's answer; marks after a connection that broke, none at first."""

    protocol: int
    readonly: bool = True
    trainer: Mark | None = None
    scribe: Mark | None = None
    run_id: str = ""  # of the run that was watched before the connection broke
    rank: int | None = None  # whose ring is read; None is the lowest there
    output: Mark | None = None  # how far the file of output has been read


class Run(Message, frozen=True, array_like=True, tag=3):
    """The content of `run.json`, and how many bytes of history follow."""

    info: RunInfo
    history_bytes: int = 0


class HistoryPart(Message, frozen=True, array_like=True, tag=4):
    """A piece of the history file as it lies on the disk."""

    data: bytes


class Batch(Message, frozen=True, array_like=True, tag=5):
    """Records of a ring in order, as they lie in it, and how far it has been read."""

    ring: int  # TRAINER, SCRIBE or OUTPUT, whose marks count bytes
    mark: Mark
    payloads: list[bytes]


class Beat(Message, frozen=True, array_like=True, tag=6):
    """How the run stands; sent when it changes and every `BEAT_S`."""

    now_s: float  # unix time there
    connected: bool
    alive: bool
    state: int
    changed_s: float
    caught_up: bool
    exit: ExitInfo | None = None
    lost: dict[str, int] = {}
    deleted: bool = False
    scribe_has_left: bool = False
    lost_spawner: int = 0


class Ask(Message, frozen=True, array_like=True, tag=7):
    """A command of the viewer, for the training's control socket."""

    request: Request


class Answer(Message, frozen=True, array_like=True, tag=8):
    """What the training said to a command, or why it could not be asked."""

    state: CommandState


class Problem(Message, frozen=True, array_like=True, tag=9):
    """Why there is nothing to relay: one line, and the exit code that goes with it."""

    exit_code: int
    text: str


TRAINER, SCRIBE, OUTPUT = 0, 1, 2
Find = Callable[[str | None], RunInfo]
FromRelay = Offer | Run | HistoryPart | Batch | Beat | Answer | Problem
FromViewer = Begin | Ask

_encoder = msgspec.msgpack.Encoder()
_from_relay: msgspec.msgpack.Decoder[FromRelay] = msgspec.msgpack.Decoder(FromRelay)
_from_viewer: msgspec.msgpack.Decoder[FromViewer] = msgspec.msgpack.Decoder(FromViewer)


class Readable(Protocol):
    """The reading end of a pipe."""

    def read(self, size: int, /) -> bytes:
        """So many bytes; fewer only at the end of the stream."""
        ...


class Damaged(Exception):
    """The bytes are not what the other side sent, or not of this protocol at all."""


def packed(message: Message) -> bytes:
    """A message as it travels."""
    payload = _encoder.encode(message)
    return _FRAME.pack(_MAGIC, len(payload), zlib.crc32(payload)) + payload


def read_from_relay(pipe: Readable) -> FromRelay | None:
    """The next message of a relay; None at the end of the stream.

    Raises:
        Damaged: not a message.
    """
    payload = _read_frame(pipe)
    try:
        return None if payload is None else _from_relay.decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise Damaged(f"a message is not understood: {error}") from error


def read_from_viewer(pipe: Readable) -> FromViewer | None:
    """The next message of a viewer; None at the end of the stream.

    Raises:
        Damaged: not a message.
    """
    payload = _read_frame(pipe)
    try:
        return None if payload is None else _from_viewer.decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise Damaged(f"a message is not understood: {error}") from error


def skip_to_greeting(pipe: Readable) -> bytes | None:
    """Read past what a login shell prints; returns that, or None when no relay ever spoke.

    Raises:
        Damaged: much was said, but no greeting.
    """
    seen = bytearray()
    while not seen.endswith(GREETING):
        byte = pipe.read(1)
        if not byte:
            return None
        seen += byte
        if len(seen) > MAX_BANNER_BYTES:
            raise Damaged("the command prints much, but no relay answers")
    return bytes(seen[: -len(GREETING)])


def check_offer(offer: FromRelay | None) -> None:
    """Whether the relay can be understood.

    Raises:
        IncompatibleVersion: it speaks another version.
        Damaged: it is not an offer.
    """
    if not isinstance(offer, Offer):
        raise Damaged("the relay did not introduce itself")
    theirs, ours = (offer.protocol, offer.format_version), (PROTOCOL, FORMAT_VERSION)
    if theirs != ours:
        raise IncompatibleVersion(
            f"the relay is of tuimon {offer.tuimon[:40]} and speaks {theirs[0]}.{theirs[1]}, this "
            f"tuimon {__version__} {ours[0]}.{ours[1]}; install the same version on both hosts"
        )


def _read_frame(pipe: Readable) -> bytes | None:
    header = pipe.read(_FRAME.size)
    if len(header) < _FRAME.size:
        return None
    magic, length, crc = _FRAME.unpack(header)
    if magic != _MAGIC or length > MAX_FRAME_BYTES:
        raise Damaged("the stream is damaged; a terminal in between changes bytes (-t, -tt)")
    payload = pipe.read(length)
    if len(payload) < length:
        return None
    if zlib.crc32(payload) != crc:
        raise Damaged("a frame is damaged; a terminal in between changes bytes (-t, -tt)")
    return payload


class Relay:
    """The end on the run's host. `serve` returns when the viewer has left."""

    def __init__(self, find: Find, source: BinaryIO, sink: BinaryIO) -> None:
        """`find` takes the id that a viewer watched before; the rest are the pipes."""
        self._find = find
        self._source = source
        self._sink = sink
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._left = threading.Event()

    def serve(self) -> None:
        """Speak until the viewer closes its end.

        Raises:
            TuimonError: there is no such run; the viewer has been told.
        """
        with contextlib.suppress(BrokenPipeError):
            self._sink.write(GREETING)
            self._send(Offer(PROTOCOL, FORMAT_VERSION, __version__))
            begin = self._begin()
            if begin is None:
                return
            try:
                info = self._find(begin.run_id or None)
                tails = self._introduce(info, begin)
                listener = threading.Thread(
                    target=self._listen, args=(info, begin.readonly), daemon=True
                )
                listener.start()
                self._pump(*tails, _lines(info, begin.output))
            except TuimonError as error:
                self._send(Problem(error.exit_code, str(error)))
                raise

    def _send(self, message: Message) -> None:
        data = memoryview(packed(message))
        while data:
            data = data[self._sink.write(data) or 0 :]
        self._sink.flush()

    def _begin(self) -> Begin | None:
        try:
            begin = read_from_viewer(self._source)
        except Damaged as error:
            raise Refused(f"{error}; a relay is spoken to by `tuimon attach --via`") from error
        if not isinstance(begin, Begin):
            return None
        if begin.protocol != PROTOCOL:
            # The viewer has seen our offer and explains it to its person.
            raise IncompatibleVersion(f"the viewer speaks relay protocol {begin.protocol}")
        return begin

    def _introduce(self, info: RunInfo, begin: Begin) -> tuple[RingTail, RingTail]:
        """Tell what run it is and what happened before; the tails of its rings."""
        history = b""
        self._pulse = Pulse(info, rank=begin.rank)
        if begin.trainer is None:
            with contextlib.suppress(OSError):
                history = self._pulse.history.read_bytes()[:MAX_HISTORY_BYTES]
        self._send(Run(info, len(history)))
        for start in range(0, len(history), PART_BYTES):
            self._send(HistoryPart(history[start : start + PART_BYTES]))
        marks = (begin.trainer, begin.scribe)
        if history:
            # Only the viewer reads the history; it says how far that goes.
            again = self._begin()
            marks = (again.trainer, again.scribe) if again else marks
        return _tail(self._pulse.ring, marks[0]), _tail(info.scribe_ring, marks[1])

    def _pump(self, trainer: RingTail, scribe: RingTail, output: OutputTail) -> None:
        told: Beat | None = None
        told_s = 0.0
        while not self._left.is_set():
            moved = False
            for ring, tail in ((TRAINER, trainer), (SCRIBE, scribe)):
                payloads = tail.payloads(BATCH_RECORDS, BATCH_S)
                moved |= bool(payloads)
                left = len(payloads)
                for part in in_parts(payloads, BATCH_BYTES):
                    left -= len(part)
                    self._send(Batch(ring, Mark(tail.last_sequence - left, tail.inode), part))
            if lines := [encode(line) for line in output.read()]:
                moved = True
                for part in in_parts(lines, BATCH_BYTES):
                    self._send(Batch(OUTPUT, Mark(output.mark, output.inode), part))
            while not self._answers.empty():
                self._send(self._answers.get())
            beat = _beat(self._pulse, trainer, scribe)
            if self._pulse.ring != trainer.path:  # a lower rank has joined
                trainer.close()
                trainer = RingTail(self._pulse.ring, None)
            if told is None or _changed(beat, told) or time.monotonic() - told_s >= BEAT_S:
                told, told_s = beat, time.monotonic()
                self._send(beat)
            if not moved:
                self._left.wait(IDLE_S)

    def _listen(self, info: RunInfo, readonly: bool) -> None:
        with contextlib.suppress(Damaged, OSError):
            while (message := read_from_viewer(self._source)) is not None:
                if isinstance(message, Ask):
                    self._answers.put(Answer(_answer(info, message.request, readonly)))
        self._left.set()
        time.sleep(LEAVE_S)
        os._exit(0)  # a write that nobody reads must not keep the process


def _answer(info: RunInfo, request: Request, readonly: bool) -> CommandState:
    state = stage_of(request, "refused")
    if readonly:
        return msgspec.structs.replace(state, reason="the viewer is read-only")
    try:
        return asking.ask(info, request)
    except (TuimonError, OSError, msgspec.MsgspecError) as error:
        return msgspec.structs.replace(state, reason=str(error))


def _tail(path: Path, mark: Mark | None) -> RingTail:
    if mark is None:
        return RingTail(path, None)
    return RingTail(path, mark.sequence, inode=mark.inode)


def _lines(info: RunInfo, mark: Mark | None) -> OutputTail:
    if mark is None:
        return OutputTail(info.output)
    return OutputTail(info.output, mark.sequence, inode=mark.inode)


def _beat(pulse: Pulse, trainer: RingTail, scribe: RingTail) -> Beat:
    def look_again() -> None:
        trainer.empty_reads = 0

    alive = pulse.is_alive(look_again)
    header = trainer.reader.status() if trainer.reader else None
    lost = trainer.lost | {f"scribe ring: {name}": count for name, count in scribe.lost.items()}
    return Beat(
        now_s=time.time(),
        connected=header is not None,
        alive=alive,
        state=header.state if header else RUNNING,
        changed_s=header.changed_ns / 1e9 if header else 0.0,
        caught_up=header is not None and trainer.empty_reads >= (1 if alive else DRAINED_AFTER),
        exit=pulse.exit,
        lost=lost,
        deleted=pulse.is_deleted,
        scribe_has_left=pulse.scribe_has_left,
        lost_spawner=pulse.lost_spawner,
    )


def _changed(beat: Beat, before: Beat) -> bool:
    return msgspec.structs.replace(beat, now_s=before.now_s) != before


def raised(problem: Problem) -> TuimonError:
    """The error that a relay tells of."""
    for kind in (NoSuchRun, IncompatibleVersion, Refused):
        if kind.exit_code == problem.exit_code:
            return kind(problem.text)
    return Refused(problem.text)
