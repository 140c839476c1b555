"""One viewer's hold on one run: finds it, drains its source into the store, says how it stands.

`tick` belongs to one thread and never waits; `send` may be called from any.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tuimon.errors import IncompatibleVersion, NoSuchRun, Refused, TuimonError
from tuimon.feed import registry
from tuimon.feed.history import History
from tuimon.feed.registry import RunInfo
from tuimon.feed.tail import Clock
from tuimon.model.commands import AnyCommand
from tuimon.model.records import CommandState, Event
from tuimon.model.text import plain
from tuimon.view.frame import OTHER_VERSION, WAITING, Exit, Frame
from tuimon.view.late_start import apply_history
from tuimon.view.source import Source, hello_of, open_source
from tuimon.view.staleness import Signs, fresh_readings, judge, left_behind
from tuimon.view.store import RunState, Standing
from tuimon.view.waits import with_wait

LOOK_EVERY_S = 0.5  # for a run that is not there yet
TICK_RECORDS = 200  # applied between two looks at the clock
TICK_S = 0.03  # a third of a frame at 10 Hz
LOADING_TICK_S = 0.1  # there is nothing to see yet: get on with it
_NO_RUN = "no run yet: `tuimon run script.py` starts one; it appears here by itself"

Find = Callable[[], RunInfo]
OpenSource = Callable[[RunInfo], Source]


class Session:
    """A source, the state it fills, and a frame a tick."""

    def __init__(
        self,
        find: Find,
        open_run: OpenSource,
        *,
        clock: Clock = time.time,
        stopwatch: Clock = time.monotonic,
        folder: str = "",
    ) -> None:
        """`find` raises a TuimonError while there is no run; `clock` is unix time.

        `folder` is where the training was started, when that is known from the beginning.
        """
        self.folder = folder
        self.state = RunState()
        self._find = find
        self._open_run = open_run
        self._clock = clock
        self._stopwatch = stopwatch
        self._source: Source | None = None
        self._waiting = Standing(WAITING, _NO_RUN)
        self._look_at_s = float("-inf")
        self._was_connected = False
        self._was_caught_up = False
        self._is_gone = False
        # Written by the thread that opens another rank, in one piece; taken by `tick`.
        self._coming: tuple[Source, History | None] | str | None = None

    def tick(self) -> Frame:
        """Read what is new, within bounds, and return the picture of this moment."""
        if self._source is None and not self._attach():
            return self.state.frame(self._waiting)
        self._take_coming()
        assert self._source is not None
        self._drain(self._source)
        status = self._source.status()
        self._was_connected |= status.connected
        self._was_caught_up |= status.caught_up
        now_s = self._clock()
        standing = judge(now_s, status, self._signs(self._source.info))
        if standing.exit is not None and not self._is_gone:
            self._is_gone = True
            self.state.ledger.expire("the training ended before it was applied")
        frame = self.state.frame(standing)
        frame = with_wait(frame, status.changed_s, now_s, left_behind(status))
        return replace(
            frame,
            system=fresh_readings(now_s, frame.state, frame.system),
        )

    def send(self, command: AnyCommand) -> CommandState:
        """Put a command on its way; its later states are in the frames.

        Raises:
            NoSuchRun: there is no run, or it has ended.
            Refused: this viewer is read-only, or the command makes no sense for any training.
        """
        if self._source is None:
            raise NoSuchRun("no run yet: nothing was sent")
        if self._is_gone:
            raise NoSuchRun("the training has ended: nothing was sent")
        if problem := command.problem():
            raise Refused(problem)
        send = getattr(self._source, "send", None)
        if send is None:
            raise Refused("this viewer is read-only: nothing was sent")
        state: CommandState = send(command)
        return state

    def look_at(self, rank: int) -> None:
        """Show another rank of the run, as soon as it is read; never waits.

        Raises:
            NoSuchRun: there is no run yet.
            Refused: what is watched has no ranks to choose from.
        """
        if self._source is None:
            raise NoSuchRun("no run yet: there is no rank to look at")
        sibling = getattr(self._source, "sibling", None)
        if sibling is None:
            raise Refused("this view has one process only")

        def fetch() -> None:
            try:
                source = sibling(rank)
                self._coming = source, source.open()
            except (TuimonError, OSError) as error:
                self._coming = f"rank {rank} cannot be shown: {error}"

        # A daemon: a host that does not answer must not keep a viewer that wants to leave.
        threading.Thread(target=fetch, name="tuimon-rank", daemon=True).start()

    def _take_coming(self) -> None:
        """Begin anew with the rank that has been opened."""
        coming, self._coming = self._coming, None
        if coming is None:
            return
        if isinstance(coming, str):
            step = None if self.state.step is None else self.state.step.step
            self.state.apply(Event(step, self._clock(), "warning", "rank", plain(coming)))
            return
        if self._source is not None:
            self._source.close()
        self.state = RunState()
        self._was_connected = self._was_caught_up = self._is_gone = False
        self._begin(*coming)

    def _begin(self, source: Source, history: History | None) -> None:
        self.state.apply(hello_of(source.info, getattr(source, "rank", None)))
        if history is not None:
            apply_history(self.state, history)
        self._source = source

    def close(self) -> None:
        """Let go of the run. Safe to call twice."""
        if self._source is not None:
            self._source.close()

    def _attach(self) -> bool:
        now_s = self._stopwatch()
        if now_s - self._look_at_s < LOOK_EVERY_S:
            return False
        self._look_at_s = now_s
        try:
            source = self._open_run(self._find())
        except NoSuchRun:
            self._waiting = Standing(WAITING, _NO_RUN)
            return False
        except IncompatibleVersion as error:
            self._waiting = Standing(OTHER_VERSION, plain(str(error)))
            return False
        except TuimonError as error:
            self._waiting = Standing(WAITING, plain(str(error)))
            return False
        self._begin(source, source.open())
        return True

    def _drain(self, source: Source) -> None:
        limit_s = TICK_S if self._was_caught_up else LOADING_TICK_S
        deadline = self._stopwatch() + limit_s
        while True:
            records = source.poll(TICK_RECORDS, limit_s / 4)
            for record in records:
                self.state.apply(record)
            if not records or self._stopwatch() >= deadline:
                return

    def _signs(self, info: RunInfo) -> Signs:
        state = self.state
        goodbye = state.goodbye
        return Signs(
            pid=state.hello.pid if state.hello else 0,
            was_connected=self._was_connected,
            was_caught_up=self._was_caught_up,
            step=None if state.step is None else state.step.step,
            last_step_s=state.pace.last_time_s,
            usual_slowest_s=state.pace.usual_slowest_s,
            started_s=info.started_at_s,
            goodbye=Exit(goodbye.kind, goodbye.code, goodbye.detail) if goodbye else None,
            watch_off=state.log.watch_off,
            not_finite=state.finite.words,
        )


def watch_run(
    run: RunInfo | str | None = None,
    *,
    readonly: bool = False,
    by: str = "",
    environ: Mapping[str, str] = os.environ,
    clock: Clock = time.time,
) -> Session:
    """A session on a run of this host.

    Args:
        run: the run itself, its id, name or pid; None is the newest one, waited for.
        readonly: hold a source that cannot send.
        by: who asks, for the ledger: "user@host (tty)".
    """

    def find() -> RunInfo:
        return run if isinstance(run, RunInfo) else registry.find_run(run, environ)

    return Session(find, lambda info: open_source(info, by=by, readonly=readonly), clock=clock)


def watch_named(token: str, environ: Mapping[str, str] = os.environ) -> Session:
    """A session that can only be read, on a run that is there.

    Raises:
        NoSuchRun, Refused, IncompatibleVersion: as their messages say.
    """
    return watch_run(registry.find_run(token, environ), readonly=True, environ=environ)


def watch_relay(
    command: str, token: str | None = None, *, readonly: bool = False, by: str = ""
) -> Session:
    """A session on a run behind `command`; blocks until its relay has answered.

    Raises:
        UsageError, NoSuchRun, Refused, IncompatibleVersion: as their messages say.
    """
    from tuimon.view.remote import open_relay

    source = open_relay(command, token, by=by, readonly=readonly)
    return Session(
        lambda: source.info, lambda _: source, clock=source.now_s, folder=source.info.cwd
    )
