"""Where a viewer's records come from, and how its commands leave: the protocol and the live run.

A source never blocks its caller: reading is bounded by a count and by time, and asking the
training happens in a thread of its own.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tuimon.errors import IncompatibleVersion, NoSuchRun, Refused, TuimonError
from tuimon.feed import asking, registry
from tuimon.feed.history import History, read_history
from tuimon.feed.output import OutputTail
from tuimon.feed.registry import ExitInfo, RunInfo
from tuimon.feed.tail import DRAINED_AFTER, Clock, Pulse, RingTail
from tuimon.model.commands import AnyCommand, Request
from tuimon.model.records import RUNNING, STATE_NAMES, AnyRecord, CommandState, Hello
from tuimon.model.stages import stage_of
from tuimon.view.frame import Exit
from tuimon.view.ledger import SENT

SCRIBE_SHARE = 8  # an eighth of a poll may go to the scribe's ring: it writes once a second


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
        deleted: the run folder is gone from the disk; what was open stays readable.
        scribe_has_left: nobody takes readings, keeps the history and looks for causes any more.
        lost_spawner: pid of the process that spawned it, where that is gone; else 0.
        link: why there is no connection to the run's host at the moment, as half a sentence.
        link_lost_for_s: for how long there has been none.
    """

    connected: bool = False
    alive: bool = True
    word: str = STATE_NAMES[RUNNING]
    changed_s: float = 0.0
    caught_up: bool = False
    exit: Exit | None = None
    problem: str = ""
    lost: dict[str, int] = field(default_factory=dict)
    deleted: bool = False
    scribe_has_left: bool = False
    lost_spawner: int = 0
    link: str = ""
    link_lost_for_s: float = 0.0


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


class RingSource:
    """A run on this host: its history file, a rank's ring and the scribe's ring. Read-only."""

    def __init__(
        self, info: RunInfo, *, rank: int | None = None, clock: Clock = time.monotonic
    ) -> None:
        """`rank` is whose ring is read; without one it is the lowest on this host."""
        self.info = info
        self.rank = rank
        self._trainer: RingTail | None = None
        self._scribe: RingTail | None = None
        self._output = OutputTail(info.output)
        self._problem = ""
        self._clock = clock
        self._pulse = Pulse(info, clock, rank=rank)

    def open(self) -> History | None:
        """Read the thinned history; the rings are opened when they are there."""
        index = 0 if self.rank is None else self.info.index_of(self.rank) or 0
        history = read_history(self.info.history(index))
        if history is not None and not _is_of(history, self.info, index):
            history = None
        after = None if history is None else history.up_to_sequence
        scribe_after = None if history is None else history.scribe_sequence
        self._trainer = RingTail(self._pulse.ring, after)
        self._scribe = RingTail(self.info.scribe_ring, scribe_after)
        return history

    def poll(self, max_records: int, max_s: float) -> list[AnyRecord]:
        """New records of the trainer, then of the scribe, then lines of output."""
        if self._trainer is None or self._scribe is None or self._problem:
            return []
        try:
            records = self._trainer.read(max_records, max_s)
            few = max(1, max_records // SCRIBE_SHARE)
            records += self._scribe.read(few, max_s / SCRIBE_SHARE)
            records += self._output.read()
        except IncompatibleVersion as error:
            self._problem = str(error)
            return []
        return records

    def status(self) -> SourceStatus:
        """Liveness by pid and start time; the exit as the scribe wrote it down."""
        alive = self._pulse.is_alive(self._look_again)
        self._follow()
        ended = exit_of(self._pulse.exit)
        reader = self._trainer.reader if self._trainer else None
        if reader is None or self._trainer is None:
            return SourceStatus(alive=alive, exit=ended, problem=self._problem)
        header = reader.status()
        looks = 1 if alive else DRAINED_AFTER
        return SourceStatus(
            connected=True,
            alive=alive,
            word=STATE_NAMES.get(header.state, STATE_NAMES[RUNNING]),
            changed_s=header.changed_ns / 1e9,
            caught_up=self._trainer.empty_reads >= looks,
            exit=ended,
            problem=self._problem,
            lost=self._lost(),
            deleted=self._pulse.is_deleted,
            scribe_has_left=self._pulse.scribe_has_left,
            lost_spawner=self._pulse.lost_spawner,
        )

    def close(self) -> None:
        """Unmap the rings, close the output. Safe to call twice."""
        self._output.close()
        for tail in (self._trainer, self._scribe):
            if tail is not None:
                tail.close()

    def _lost(self) -> dict[str, int]:
        lost = dict(self._trainer.lost) if self._trainer else {}
        for reason, count in (self._scribe.lost if self._scribe else {}).items():
            lost[f"scribe ring: {reason}"] = count
        return lost

    def sibling(self, rank: int) -> RingSource:
        """Another rank of the same run; to be opened.

        Raises:
            NoSuchRun: there is no such rank on this host.
        """
        return RingSource(self._having(rank), rank=rank, clock=self._clock)

    def _having(self, rank: int) -> RunInfo:
        info = registry.load(self.info.path)
        if info.index_of(rank) is None:
            raise NoSuchRun(f"rank {rank} has not joined the run on {info.host}")
        return info

    def _follow(self) -> None:
        """Read another ring when a lower rank has joined."""
        if self._trainer is not None and self._pulse.ring != self._trainer.path:
            self._trainer.close()
            self._trainer = RingTail(self._pulse.ring, None)
        self.info = self._pulse.info

    def _look_again(self) -> None:
        """Its last words may have come after the last look."""
        if self._trainer is not None:
            self._trainer.empty_reads = 0


class CommandingRingSource(RingSource):
    """A run on this host that this viewer may reach into.

    One thread asks the training, a command at a time; `_outbox` goes to it and `_answers` comes
    back, both queues that nobody waits for but the thread itself.
    """

    def __init__(
        self, info: RunInfo, by: str, *, rank: int | None = None, clock: Clock = time.monotonic
    ) -> None:
        super().__init__(info, rank=rank, clock=clock)
        self._by = by
        self._outbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[CommandState] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def sibling(self, rank: int) -> RingSource:
        """Another rank of the same run; to be opened."""
        return CommandingRingSource(self._having(rank), self._by, rank=rank, clock=self._clock)

    def send(self, command: AnyCommand) -> CommandState:
        """Queue a command; any thread may call. Raises nothing: refusals come by `poll`."""
        request = Request(uuid.uuid4().hex, self._by, command, time.time())
        state = stage_of(request, SENT)
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
                answer = asking.ask(self.info, request)
            except (TuimonError, OSError, msgspec.MsgspecError) as error:
                answer = stage_of(request, "refused", reason=str(error))
            self._answers.put(answer)


def open_source(info: RunInfo, *, by: str = "", readonly: bool = False) -> RingSource:
    """A source for a run; a read-only one cannot send at all.

    Raises:
        Refused: the run belongs to another user.
    """
    if info.uid != os.getuid():
        raise Refused(f"run {info.id} belongs to user {info.uid}; only that user may look at it")
    return RingSource(info) if readonly else CommandingRingSource(info, by)


def _is_of(history: History, info: RunInfo, index: int) -> bool:
    """Whether a history is that of this process: the lowest rank may have become another one."""
    hello = history.hello
    same = hello is None or len(info.ranks) < 2 or hello.pid == info.ranks[index].pid
    return history.run_id == info.id and same


def hello_of(info: RunInfo, rank: int | None = None) -> Hello:
    """What `run.json` says of a rank, until the training has said it itself."""
    index = 0 if rank is None else info.index_of(rank) or 0
    return Hello(
        format_version=info.format_version,
        run_id=info.id,
        name=info.name,
        host=info.host,
        pid=info.ranks[index].pid if info.ranks else 0,
        rank=info.ranks[index].rank if info.ranks else 0,
        world_size=info.world_size,
        started_at_s=info.started_at_s,
        argv=info.argv,
        versions=info.versions,
        total_steps=info.total_steps,
    )


def exit_of(info: ExitInfo | None) -> Exit | None:
    """How a run ended, in the terms of a viewer."""
    return None if info is None else Exit(info.kind, info.code, info.detail)
