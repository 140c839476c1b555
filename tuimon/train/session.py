"""One run of one process: its ring, its control socket and its end. Imports no torch.

The training thread publishes; the control thread publishes answers. Nothing here raises into
the training: a run that cannot be published goes on unwatched.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import structs

from tuimon.errors import TuimonError
from tuimon.feed import jobs, paths, registry
from tuimon.feed.channel import ControlServer
from tuimon.feed.codec import decode, encode
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.feed.ring import RingWriter
from tuimon.model.autopsy import Autopsy
from tuimon.model.commands import Request
from tuimon.model.records import (
    ENDED,
    RUNNING,
    UNWATCHED,
    CommandState,
    DeviceStats,
    Event,
    Goodbye,
    Hello,
    Loss,
    Record,
    RingLost,
    Step,
)
from tuimon.model.text import plain
from tuimon.train.boundary import Stop, say
from tuimon.train.introduction import introduction, versions
from tuimon.train.launch.attendant import start_scribe, wants_scribe
from tuimon.train.place import find_place
from tuimon.train.watchful import Watch

REPEAT_S = 5.0  # how often records that a late reader needs are published again

_current: Session | None = None
_start_lock = threading.Lock()  # start_session may be called from any user thread


class Session:
    """What a process publishes. Without a run (`info` is None) every method does nothing.

    `_kept` is written by the training thread only; the ring has a lock of its own.

    Attributes:
        info: the run as it was when this process came; other ranks may join later.
        me: this process among the ranks.
        watch: whether tuimon has switched itself off here.
    """

    def __init__(
        self,
        info: RunInfo | None = None,
        ring: RingWriter | None = None,
        me: RankInfo | None = None,
    ) -> None:
        self.info = info
        self.me = me
        self.finished = False
        self.step: int | None = None
        self.first_autopsy: Autopsy | None = None
        self.first_non_finite: tuple[str, int] | None = None  # what, step
        self.started_s = time.monotonic()
        self._ring = ring
        self._pid = os.getpid()
        self._state = RUNNING
        self._server: ControlServer | None = None
        self._kept: dict[str, bytes] = {}
        self._repeat_at_s = self.started_s + REPEAT_S
        self._lost_said = 0
        self.watch = Watch(self)
        self._at_finish: list[Callable[[], None]] = []
        self.spawned: Callable[[], int] = int  # children that were prepared to be watched as well
        self.look_at_crash: Callable[[BaseException], Record] | None = None
        self.after_crash: Callable[[BaseException, Record], None] | None = None

    @property
    def rank(self) -> int:
        """Of this process; 0 where it is alone."""
        return self.me.rank if self.me is not None else 0

    @property
    def watched(self) -> bool:
        """Whether somebody could be looking: there is a ring and the run has not ended."""
        return self._ring is not None and not self.finished and os.getpid() == self._pid

    def publish(self, record: Record) -> None:
        """Append one record to the ring. Safe from any thread; never raises, never waits.

        A step of the primary optimizer is the newest from then on, and what late readers need is
        published again where that is due.
        """
        ring = self._ring
        if ring is None or self.finished:
            return
        is_step = type(record) is Step
        if is_step and not record.optimizer:  # type: ignore[attr-defined]
            self.step = ring.step = record.step  # type: ignore[attr-defined]
            if time.monotonic() >= self._repeat_at_s:
                self._repeat(ring)
        if self.first_non_finite is None and (not is_step or record.bad):  # type: ignore[attr-defined]
            self.first_non_finite = _non_finite_in(record)
        try:
            ring.publish(encode(record))
        except Exception as error:
            self.watch.could_not_write(record, error)

    def event(
        self,
        kind: str,
        text: str,
        *,
        severity: str = "info",
        detail: str = "",
        step: int | None = None,
        until_s: float | None = None,
        first_step: int | None = None,
    ) -> None:
        """Publish a line for the event log; without `step` it is of the newest one that is over."""
        self.publish(
            Event(
                step=self.step if step is None else step,
                time_s=time.time(),
                severity=severity,
                kind=kind,
                text=plain(text),
                detail=plain(detail),
                until_s=until_s,
                first_step=first_step,
            )
        )

    def keep(self, slot: str, record: Record) -> None:
        """Publish now and again every few seconds: the ring forgets, a late reader must not."""
        ring = self._ring
        if ring is None or self.finished:
            return
        with contextlib.suppress(Exception):
            payload = encode(record)
            self._kept[slot] = payload
            ring.publish(payload)

    def foresee(self, total_steps: int) -> None:
        """Say how many updates the run will make; who started it knows better."""
        if self.info is None or self.info.total_steps is not None:
            return
        with contextlib.suppress(Exception):
            hello = decode(self._kept["hello"])
            if isinstance(hello, Hello) and hello.total_steps != total_steps:
                self.keep("hello", structs.replace(hello, total_steps=total_steps))

    def set_state(self, state: int) -> None:
        """Change the state word in the ring's header; a watch that is off says so all the time."""
        if self.watch.off and state != UNWATCHED:
            return
        self._state = state
        if self._ring is not None and not self.finished:
            self._ring.set_state(state, self.step)

    def count_lost(self, count: int, reason: str) -> None:
        """Publish how many records or samples were lost, with the reason."""
        if count > 0:
            self.publish(RingLost(count=count, reason=reason))

    def listen(self, on_request: Callable[[Request], CommandState]) -> None:
        """Open the control socket; without one the run can be watched, but not be changed."""
        self.watch.decide = on_request
        self.open_control()

    def open_control(self) -> None:
        """Answer requests, if only to refuse them."""
        if self.info is None or self._server is not None or not self.watched:
            return
        if self.me is not None and not self.me.leads and not self._stands_in():
            return  # one process answers for the run
        server = ControlServer(self.info.control, self.watch.on_request, self.publish)
        try:
            server.start()
        except OSError as error:
            say(f"no control socket ({error.strerror}); the run can be watched, not changed")
            return
        self._server = server

    @property
    def is_cut_off(self) -> bool:
        """Whether the way that commands came by has been deleted."""
        return self._server is not None and not self._server.is_reachable

    def _stands_in(self) -> bool:
        """Whether this process was the first here, and nobody has come who answers for the run.

        On a host whose launcher says nothing, no rank knows that it is the one to answer. Whoever
        does comes later and takes over.
        """
        if self.info is None or len(self.info.ranks) > 1:
            return False
        with contextlib.suppress(TuimonError):
            return not any(each.leads for each in registry.load(self.info.path).ranks)
        return False

    def before_finish(self, action: Callable[[], None]) -> None:
        """Register what must be published before the run ends."""
        self._at_finish.append(action)

    def crashed(self, error: BaseException) -> None:
        """Publish what an uncaught exception tells, while its frames still live. Never raises."""
        look = self.look_at_crash
        if look is None or not self.watched or isinstance(error, KeyboardInterrupt):
            return
        test = self.after_crash
        self.look_at_crash = self.after_crash = None  # once; they must not hold on to the training
        with contextlib.suppress(Exception):
            crash = look(error)
            self.publish(crash)
            if test is not None:
                test(error, crash)

    def finish(self, kind: str, *, code: int | None = None, detail: str = "") -> None:
        """Say goodbye and close everything; the first call wins. Never raises."""
        if self.finished or os.getpid() != self._pid:
            return
        for action in self._at_finish:
            with contextlib.suppress(Exception):
                action()
        with contextlib.suppress(Exception):
            if self._server is not None:
                self._server.close()
        ring = self._ring
        if ring is not None:
            with contextlib.suppress(Exception):
                self._report_lost(ring)
                self.publish(
                    Goodbye(
                        kind=kind,
                        code=code,
                        detail=plain(detail),
                        step=self.step,
                        time_s=time.time(),
                    )
                )
                ring.set_state(ENDED, self.step)
                ring.close()
        self.finished = True

    def _repeat(self, ring: RingWriter) -> None:
        self._repeat_at_s = time.monotonic() + REPEAT_S
        self.watch.look_again()
        with contextlib.suppress(Exception):
            for payload in self._kept.values():
                ring.publish(payload)
            self._report_lost(ring)

    def _report_lost(self, ring: RingWriter) -> None:
        dropped = ring.dropped
        self.count_lost(dropped - self._lost_said, "too large for the ring")
        self._lost_said = dropped


def _non_finite_in(record: Record) -> tuple[str, int] | None:
    """What a record says to be non-finite, and at which step; a skipped update is no news."""
    if isinstance(record, Loss):
        return "loss", record.step
    if isinstance(record, Step) and record.bad and not record.skipped:
        return record.bad[0].what, record.step
    if isinstance(record, DeviceStats) and record.loss is not None:
        return None if math.isfinite(record.loss) else ("loss", record.step)
    return None


def current_session() -> Session | None:
    """The session of this process; None before there is one, and in a forked child."""
    session = _current
    return session if session is not None and session._pid == os.getpid() else None


def is_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user switched tuimon off with `TUIMON_DISABLE=1`."""
    return environ.get("TUIMON_DISABLE", "0") not in ("", "0")


def start_session(
    *,
    name: str | None = None,
    argv: list[str] | None = None,
    report: str | None = None,
    launcher: str = "",
    total_steps: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Session:
    """Join the run of this process's job, or make one and start its scribe; never raises.

    Returns the session there is, if there is a live one. When no folder can hold a run, one line
    on stderr says so and the session is unwatched. `launcher` is the folder of the run of the
    watched process that spawned this one, `total_steps` how many updates a new run will make.
    """
    global _current
    with _start_lock:
        session = current_session()
        if session is not None and not session.finished:
            return session
        # A forked child of a watched process (a data worker, most likely) is not a run.
        forked = _current is not None and session is None
        if forked or is_disabled(environ):
            session = Session()
        else:
            words = list(sys.argv if argv is None else argv)
            place = find_place(environ, words, launcher)
            session = _new_session(name, words, report, place, environ, total_steps=total_steps)
        _current = session
        return session


def _new_session(
    name: str | None,
    argv: list[str],
    report: str | None,
    place: jobs.Place,
    environ: Mapping[str, str],
    *,
    total_steps: int | None,
) -> Session:
    entered = None
    try:
        info, me, is_new = entered = jobs.enter(
            place,
            name=name or Path(argv[0] if argv else "").name or "python",
            argv=argv,
            versions=versions(),
            report=report,
            total_steps=total_steps,
            environ=environ,
        )
        size_bytes = paths.ring_bytes(info.path, max(1, place.ranks_here))
        ring = RingWriter.create(info.path / me.ring, size_bytes, start_ticks=me.start_ticks)
    except Exception as error:
        is_told = isinstance(error, TuimonError)
        why = str(error) if is_told else f"no run can be made ({type(error).__name__}: {error})"
        say(f"{why}; the training goes on unwatched")
        if entered is not None:
            with contextlib.suppress(Exception):
                jobs.leave(*entered[:2])
        return Session()
    session = Session(info, ring, me)
    session.keep("hello", introduction(info, me))
    atexit.register(_finish_at_exit, session)
    if not is_new:
        return session  # whoever made the run has said so, and started its scribe
    say(f"this is run {info.id}; watch it with: tuimon attach {info.id}")
    if wants_scribe(environ) and (reason := start_scribe(info, environ)):
        say(f"no scribe ({reason}); live view only, no history and no report")
    return session


def _finish_at_exit(session: Session) -> None:
    """The end of a script that called `watch` itself: what the interpreter remembers of it."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    # An interactive interpreter remembers errors that did not end it.
    if error is None or hasattr(sys, "ps1"):
        session.finish("ok")
    elif isinstance(error, Stop):
        session.finish("stopped", detail=str(error))
    else:
        session.crashed(error)
        session.finish("exception", detail=f"{type(error).__name__}: {error}")
