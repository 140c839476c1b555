"""Where a viewer's records come from, and how its commands leave: the protocol and the live run.

A source never blocks its caller: reading is bounded by a count and by time, and asking the
training happens in a thread of its own.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from tuimon.errors import IncompatibleVersion, NoSuchRun, Refused, TuimonError
from tuimon.feed import channel, registry
from tuimon.feed.codec import decode
from tuimon.feed.history import History, read_history
from tuimon.feed.registry import RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model.commands import AnyCommand, Request
from tuimon.model.records import RUNNING, STATE_NAMES, AnyRecord, CommandState, Hello
from tuimon.view.frame import Exit
from tuimon.view.ledger import SENT

ANSWER_S = 5.0  # the training's control thread answers at once unless the process is stopped
ALIVE_EVERY_S = 0.25
EXIT_EVERY_S = 0.5
SCRIBE_SHARE = 8  # an eighth of a poll may go to the scribe's ring: it writes once a second
DRAINED_AFTER = RingReader.TORN_AFTER + 1  # looks at a torn record before it is believed

Clock = Callable[[], float]


@dataclass(frozen=True)
class SourceStatus:
    """What a source can say beside its records.

    Attributes:
        connected: there is something to read from.
        alive: the training's process exists; a source that cannot know says True.
        word: state word of the run: "running", "paused", "held" or "gone".
        changed_s: unix time of the last change of `word`.
        caught_up: everything that was written has been read.
        exit: how the run ended, where somebody wrote it down.
        problem: why the run cannot be read at all, as one sentence.
        lost: records that did not arrive, by reason.
    """

    connected: bool = False
    alive: bool = True
    word: str = STATE_NAMES[RUNNING]
    changed_s: float = 0.0
    caught_up: bool = False
    exit: Exit | None = None
    problem: str = ""
    lost: dict[str, int] = field(default_factory=dict)


class Source(Protocol):
    """Records of one run, live or recorded."""

    info: RunInfo

    def open(self) -> History | None:
        """Begin; returns what happened before the first record, where that is known."""
        ...

    def poll(self, max_records: int, max_s: float) -> list[AnyRecord]:
        """The next records in order, at most so many and for at most about so long."""
        ...

    def status(self) -> SourceStatus:
        """How the run stands."""
        ...

    def close(self) -> None:
        """Let go. Safe to call twice."""
        ...


class CommandingSource(Source, Protocol):
    """A source that can also reach the training. A read-only viewer does not hold one."""

    def send(self, command: AnyCommand) -> CommandState:
        """Put a command on its way and return its first state; what follows comes by `poll`."""
        ...


class RingTail:
    """One ring, read from wherever it begins, across replacements of its file."""

    def __init__(self, path: Path, from_sequence: int | None) -> None:
        self._path = path
        self._from_sequence = from_sequence
        self._reader: RingReader | None = None
        self._lost: dict[str, int] = {}
        self.empty_reads = 0  # in a row

    @property
    def reader(self) -> RingReader | None:
        return self._reader

    @property
    def lost(self) -> dict[str, int]:
        """Records that were written and never seen or not understood, by reason."""
        total = dict(self._lost)
        for reason, count in (self._reader.lost if self._reader else {}).items():
            total[reason] = total.get(reason, 0) + count
        return total

    def read(self, max_records: int, max_s: float) -> list[AnyRecord]:
        """New records; none while there is no file.

        Raises:
            IncompatibleVersion: another version of tuimon writes this ring.
        """
        if self._reader is None and not self._connect():
            return []
        assert self._reader is not None
        payloads = self._reader.read(max_records, max_s)
        self.empty_reads = 0 if payloads else self.empty_reads + 1
        if not payloads and self._is_replaced():
            self.close()
            self._from_sequence = None  # another writer counts anew
            self.empty_reads = 0
        return self._decoded(payloads)

    def close(self) -> None:
        if self._reader is not None:
            self._lost = self.lost
            self._reader.close()
            self._reader = None

    def _connect(self) -> bool:
        try:
            self._reader = RingReader(self._path, self._from_sequence)
        except NoSuchRun:
            return False
        return True

    def _is_replaced(self) -> bool:
        assert self._reader is not None
        try:
            return self._path.stat().st_ino != self._reader.inode
        except OSError:
            return False  # deleted: what is mapped stays readable

    def _decoded(self, payloads: list[bytes]) -> list[AnyRecord]:
        records: list[AnyRecord] = []
        for payload in payloads:
            try:
                records.append(decode(payload))
            except (msgspec.DecodeError, ValueError):
                self._lost["undecodable"] = self._lost.get("undecodable", 0) + 1
        return records


class RingSource:
    """A run on this host: its history file, the trainer's ring and the scribe's ring. Read-only."""

    def __init__(self, info: RunInfo, *, clock: Clock = time.monotonic) -> None:
        self.info = info
        self._clock = clock
        self._trainer: RingTail | None = None
        self._scribe: RingTail | None = None
        self._problem = ""
        self._alive = True
        self._alive_at_s = -ALIVE_EVERY_S
        self._exit = _exit_of(info)
        self._exit_at_s = -EXIT_EVERY_S

    def open(self) -> History | None:
        """Read the thinned history; the rings are opened when they are there."""
        history = read_history(self.info.path / "history.bin")
        if history is not None and history.run_id != self.info.id:
            history = None
        after = None if history is None else history.up_to_sequence
        scribe_after = None if history is None else history.scribe_sequence
        self._trainer = RingTail(self.info.ring(), after)
        self._scribe = RingTail(self.info.scribe_ring, scribe_after)
        return history

    def poll(self, max_records: int, max_s: float) -> list[AnyRecord]:
        """New records of the trainer, then of the scribe."""
        if self._trainer is None or self._scribe is None or self._problem:
            return []
        try:
            records = self._trainer.read(max_records, max_s)
            few = max(1, max_records // SCRIBE_SHARE)
            records += self._scribe.read(few, max_s / SCRIBE_SHARE)
        except IncompatibleVersion as error:
            self._problem = str(error)
            return []
        return records

    def status(self) -> SourceStatus:
        """Liveness by pid and start time; the exit as the scribe wrote it down."""
        alive = self._is_alive()
        reader = self._trainer.reader if self._trainer else None
        if reader is None or self._trainer is None:
            return SourceStatus(alive=alive, exit=self._exit, problem=self._problem)
        header = reader.status()
        looks = 1 if alive else DRAINED_AFTER
        return SourceStatus(
            connected=True,
            alive=alive,
            word=STATE_NAMES.get(header.state, STATE_NAMES[RUNNING]),
            changed_s=header.changed_ns / 1e9,
            caught_up=self._trainer.empty_reads >= looks,
            exit=self._exit,
            problem=self._problem,
            lost=self._lost(),
        )

    def close(self) -> None:
        """Unmap the rings. Safe to call twice."""
        for tail in (self._trainer, self._scribe):
            if tail is not None:
                tail.close()

    def _lost(self) -> dict[str, int]:
        lost = dict(self._trainer.lost) if self._trainer else {}
        for reason, count in (self._scribe.lost if self._scribe else {}).items():
            lost[f"scribe ring: {reason}"] = count
        return lost

    def _is_alive(self) -> bool:
        now_s = self._clock()
        if self._alive and now_s - self._alive_at_s >= ALIVE_EVERY_S:
            self._alive_at_s = now_s
            elsewhere = self.info.host != socket.gethostname()
            self._alive = elsewhere or registry.is_alive(self.info)
            if not self._alive and self._trainer is not None:
                self._trainer.empty_reads = 0  # its last words may have come after the last look
        if not self._alive and self._exit is None and now_s - self._exit_at_s >= EXIT_EVERY_S:
            self._exit_at_s = now_s
            self._exit = self._read_exit()
        return self._alive

    def _read_exit(self) -> Exit | None:
        try:
            return _exit_of(registry.load(self.info.path))
        except TuimonError:
            return None


class CommandingRingSource(RingSource):
    """A run on this host that this viewer may reach into.

    One thread asks the training, a command at a time; `_outbox` goes to it and `_answers` comes
    back, both queues that nobody waits for but the thread itself.
    """

    def __init__(self, info: RunInfo, by: str, *, clock: Clock = time.monotonic) -> None:
        super().__init__(info, clock=clock)
        self._by = by
        self._outbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[CommandState] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, command: AnyCommand) -> CommandState:
        """Queue a command; any thread may call. Raises nothing: refusals come by `poll`."""
        request = Request(uuid.uuid4().hex, self._by, command, time.time())
        state = _state_of(request, SENT)
        self._answers.put(state)
        with self._starting:
            if self._thread is None:
                # A daemon: an unanswered question must not keep a viewer that wants to leave.
                self._thread = threading.Thread(target=self._ask, name="tuimon-ask", daemon=True)
                self._thread.start()
        self._outbox.put(request)
        return state

    def poll(self, max_records: int, max_s: float) -> list[AnyRecord]:
        """The stages of this viewer's commands, then what the rings say."""
        answers: list[AnyRecord] = []
        while not self._answers.empty():
            answers.append(self._answers.get())
        return answers + super().poll(max_records, max_s)

    def close(self) -> None:
        """Let the thread end after the question it is at. Safe to call twice."""
        super().close()
        self._outbox.put(None)

    def _ask(self) -> None:
        while (request := self._outbox.get()) is not None:
            try:
                answer = channel.ask(self.info.control, request, ANSWER_S)
            except (TuimonError, OSError, msgspec.MsgspecError) as error:
                answer = _state_of(request, "refused", str(error))
            self._answers.put(answer)


def open_source(info: RunInfo, *, by: str = "", readonly: bool = False) -> RingSource:
    """A source for a run; a read-only one cannot send at all.

    Raises:
        Refused: the run belongs to another user.
    """
    if info.uid != os.getuid():
        raise Refused(f"run {info.id} belongs to user {info.uid}; only that user may look at it")
    return RingSource(info) if readonly else CommandingRingSource(info, by)


def hello_of(info: RunInfo) -> Hello:
    """What `run.json` says, until the training has said it itself."""
    return Hello(
        format_version=info.format_version,
        run_id=info.id,
        name=info.name,
        host=info.host,
        pid=info.ranks[0].pid if info.ranks else 0,
        rank=info.ranks[0].rank if info.ranks else 0,
        world_size=info.world_size,
        started_at_s=info.started_at_s,
        argv=info.argv,
        versions=info.versions,
    )


def _exit_of(info: RunInfo) -> Exit | None:
    return None if info.exit is None else Exit(info.exit.kind, info.exit.code, info.exit.detail)


def _state_of(request: Request, state: str, reason: str = "") -> CommandState:
    return CommandState(
        id=request.id,
        command=request.command.title,
        state=state,
        by=request.by,
        asked_at_s=request.asked_at_s,
        reason=reason,
    )
