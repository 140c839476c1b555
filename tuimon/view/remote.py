"""A run on another host: the relay's process there is a source like the rings are here.

One thread per source reads the relay and starts it again, with growing pauses, when it is lost;
what it reads goes through `_inbox`, which is bounded: a viewer that lags fills the pipe, and the
relay counts what the ring overran. The viewer's own thread reads `_inbox` and never waits.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence

import msgspec

from tuimon.errors import IncompatibleVersion, NoSuchRun, TuimonError
from tuimon.feed import relay
from tuimon.feed.history import History
from tuimon.feed.tail import Clock, decoded
from tuimon.model.commands import AnyCommand, Request
from tuimon.model.records import RUNNING, STATE_NAMES, AnyRecord, CommandState
from tuimon.model.stages import stage_of
from tuimon.view.ledger import SENT
from tuimon.view.link import Link, relay_words
from tuimon.view.source import SourceStatus, exit_of

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
MAX_WAITING = 64  # messages of at most about 256 KiB


class RelaySource:
    """A run behind a command, such as `ssh gpu07`. Read-only."""

    _readonly = True

    def __init__(
        self, words: Sequence[str], *, rank: int | None = None, clock: Clock = time.monotonic
    ) -> None:
        """Start the command and shake hands; blocks until the run is known.

        `rank` is whose records are sent; without one it is the lowest on that host.

        Raises:
            NoSuchRun, Refused, IncompatibleVersion: as the relay says, or why there is none.
        """
        self._words = list(words)
        self.rank = rank
        self._clock = clock
        self._inbox: queue.Queue[relay.FromRelay | None] = queue.Queue(MAX_WAITING)
        self._pending: deque[AnyRecord] = deque()
        self._beat: relay.Beat | None = None
        self._lost: dict[str, int] = {}  # of connections before, and what did not decode
        self._skew_s: float | None = None
        self._marks: dict[int, relay.Mark] = {}  # written by the thread that reads
        self._problem = ""  # these four too, each in one piece
        self._trouble = ""
        self._lost_at_s = 0.0
        self._retry_at_s = 0.0
        self._closed = threading.Event()
        self._link = self._connect(detached=False)
        self.info = self._link.info
        self._history = self._link.history
        # A daemon: a relay that hangs must not keep a viewer that wants to leave.
        threading.Thread(target=self._read, name="tuimon-relay", daemon=True).start()

    def open(self) -> History | None:
        """What happened before the first record."""
        return self._history

    def poll(self, max_records: int, max_s: float) -> list[AnyRecord]:
        """Records that have arrived."""
        until_s = self._clock() + max_s
        taken: list[AnyRecord] = []
        while len(taken) < max_records and self._clock() <= until_s:
            if self._pending:
                taken.append(self._pending.popleft())
            elif not self._take():
                break
        return taken

    def status(self) -> SourceStatus:
        """How the run stands, as the relay last said, and how the relay does."""
        beat, trouble, now_s = self._beat, self._trouble, self._clock()
        lost_for_s = max(0.0, now_s - self._lost_at_s) if trouble else 0.0
        if trouble and not self._problem:
            again_s = self._retry_at_s - now_s
            when = f"trying again in {again_s:.0f} s" if again_s >= 1 else "trying again"
            trouble = f"{when}: {trouble.removeprefix('relay: ')}"
        if beat is None:
            return SourceStatus(problem=self._problem, link=trouble, link_lost_for_s=lost_for_s)
        lost = dict(self._lost)
        for reason, count in beat.lost.items():
            lost[reason] = lost.get(reason, 0) + count
        return SourceStatus(
            connected=beat.connected,
            alive=beat.alive,
            word=STATE_NAMES.get(beat.state, STATE_NAMES[RUNNING]),
            changed_s=beat.changed_s,
            caught_up=beat.caught_up and not self._pending and self._inbox.empty(),
            exit=exit_of(beat.exit),
            problem=self._problem,
            lost=lost,
            deleted=beat.deleted,
            scribe_has_left=beat.scribe_has_left,
            lost_spawner=beat.lost_spawner,
            link=trouble,
            link_lost_for_s=lost_for_s,
        )

    def sibling(self, rank: int) -> RelaySource:
        """Another rank of the same run, behind a relay of its own; blocks as the first one did."""
        return RelaySource(self._words, rank=rank, clock=self._clock)

    def now_s(self) -> float:
        """Unix time by the clock of the run's host."""
        return time.time() + (self._skew_s or 0.0)

    def close(self) -> None:
        """Let the relay go. Safe to call twice."""
        self._closed.set()
        self._link.end()

    def _take(self) -> bool:
        """Take one message out of the inbox; False when there is none."""
        try:
            message = self._inbox.get_nowait()
        except queue.Empty:
            return False
        match message:
            case relay.Batch(payloads=payloads):
                self._pending.extend(decoded(payloads, self._lost))
            case relay.Beat():
                self._beat = message
                # The beat that travelled shortest tells the difference of the clocks best.
                skew_s = message.now_s - time.time()
                self._skew_s = skew_s if self._skew_s is None else max(skew_s, self._skew_s)
            case relay.Answer(state=state):
                self._pending.append(state)
            case None:  # another relay counts its losses anew
                for reason, count in (self._beat.lost if self._beat else {}).items():
                    self._lost[reason] = self._lost.get(reason, 0) + count
                if self._beat is not None:
                    self._beat = msgspec.structs.replace(self._beat, lost={}, caught_up=False)
        return True

    def _connect(self, *, detached: bool) -> Link:
        link = Link(self._words, detached=detached)
        begin = relay.Begin(
            relay.PROTOCOL,
            self._readonly,
            self._marks.get(relay.TRAINER),
            self._marks.get(relay.SCRIBE),
            self.info.id if detached else "",
            self.rank,
            self._marks.get(relay.OUTPUT),
        )
        try:
            link.begin(begin)
        except BaseException:
            link.end()
            link.release()
            raise
        if link.history is not None:
            self._marks[relay.TRAINER] = relay.Mark(link.history.up_to_sequence)
            self._marks[relay.SCRIBE] = relay.Mark(link.history.scribe_sequence)
        return link

    def _read(self) -> None:
        """Read until the viewer closes; start the relay again whenever it is lost."""
        while True:
            try:
                reason = self._follow(self._link)
            except relay.Damaged as error:
                reason = f"relay: {error}"
            except OSError as error:
                reason = f"relay: {error.strerror}"
            self._on_lost()
            self._link.end()
            self._link.release()
            if self._closed.is_set() or not self._reconnect(reason):
                return
            self._put(None)

    def _follow(self, link: Link) -> str:
        while (message := relay.read_from_relay(link)) is not None:
            if isinstance(message, relay.Problem):
                return f"relay: {message.text}"
            if isinstance(message, relay.Batch):
                self._marks[message.ring] = message.mark
            self._put(message)
        return link.reason()

    def _put(self, message: relay.FromRelay | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._inbox.put(message, timeout=0.2)
                return

    def _reconnect(self, reason: str) -> bool:
        """Try until it works, with growing pauses; False when there is no use in it."""
        self._lost_at_s = self._clock()
        pause_s = FIRST_RETRY_S
        while True:
            self._retry_at_s = self._clock() + pause_s
            self._trouble = reason
            if self._closed.wait(pause_s):
                return False
            try:
                self._link = self._connect(detached=True)
            except (IncompatibleVersion, NoSuchRun) as error:
                self._problem = str(error)
                return False
            except TuimonError as error:
                reason = str(error)
            else:
                self._trouble = ""
                return True
            pause_s = min(LAST_RETRY_S, pause_s * 2)

    def _on_lost(self) -> None:
        """Called by the thread that reads when the relay is gone."""


class CommandingRelaySource(RelaySource):
    """A run behind a command that this viewer may reach into.

    `_asked` holds what was sent and not answered; `_sending` guards it and the pipe's end.
    """

    _readonly = False

    def __init__(
        self,
        words: Sequence[str],
        by: str,
        *,
        rank: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._by = by
        self._asked: dict[str, Request] = {}
        self._outbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[CommandState] = queue.SimpleQueue()
        super().__init__(words, rank=rank, clock=clock)
        threading.Thread(target=self._write, name="tuimon-ask", daemon=True).start()

    def sibling(self, rank: int) -> RelaySource:
        """Another rank of the same run, behind a relay of its own; blocks as the first one did."""
        return CommandingRelaySource(self._words, self._by, rank=rank, clock=self._clock)

    def send(self, command: AnyCommand) -> CommandState:
        """Queue a command; any thread may call. Raises nothing: refusals come by `poll`."""
        request = Request(uuid.uuid4().hex, self._by, command, time.time())
        state = stage_of(request, SENT)
        self._said.put(state)
        self._outbox.put(request)
        return state

    def poll(self, max_records: int, max_s: float) -> list[AnyRecord]:
        """The stages of this viewer's commands, then what the relay says."""
        said: list[AnyRecord] = []
        while not self._said.empty():
            said.append(self._said.get())
        records = super().poll(max_records, max_s)
        for record in records:
            if isinstance(record, CommandState):
                self._asked.pop(record.id, None)
        return said + records

    def close(self) -> None:
        """Let the relay go. Safe to call twice."""
        self._outbox.put(None)
        super().close()

    def _write(self) -> None:
        while (request := self._outbox.get()) is not None:
            if self._trouble:
                reason = "the relay is lost: nothing was sent"
                self._said.put(stage_of(request, "refused", reason=reason))
                continue
            self._asked[request.id] = request
            try:
                self._link.write(relay.Ask(request))
            except (OSError, ValueError):
                self._forget(request)

    def _on_lost(self) -> None:
        for request in list(self._asked.values()):
            self._forget(request)

    def _forget(self, request: Request) -> None:
        if self._asked.pop(request.id, None) is not None:
            reason = "the relay was lost before an answer came; the commands show it if it arrived"
            self._said.put(stage_of(request, "expired", reason=reason))


def open_relay(
    command: str, token: str | None, *, by: str = "", readonly: bool = False
) -> RelaySource:
    """A source for a run behind `command`; a read-only one cannot send at all.

    Raises:
        UsageError: the command or the run's name cannot be used.
        NoSuchRun, Refused, IncompatibleVersion: as the relay says, or why there is none.
    """
    words = relay_words(command, token)
    return RelaySource(words) if readonly else CommandingRelaySource(words, by)
