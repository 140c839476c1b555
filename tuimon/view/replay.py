"""A recorded run as a viewer sees it: played, paused, at another speed, from any step on.

The records go into the same store as those of a live run. Belongs to one thread and never waits:
what takes long is done in pieces, one a tick.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

from tuimon.errors import NoSuchRun, Refused
from tuimon.feed.history import History
from tuimon.feed.recording import Recording, read_recording
from tuimon.feed.recordings import find_recording
from tuimon.feed.registry import RunInfo
from tuimon.feed.tail import Clock
from tuimon.model.commands import AnyCommand
from tuimon.model.records import CommandState
from tuimon.model.units import count
from tuimon.view.frame import END, GONE, LIVE, LOADING, Exit, Frame, Replay
from tuimon.view.late_start import apply_history
from tuimon.view.reel import Newest, Reel, first_step_of, start_for, time_of
from tuimon.view.source import SourceStatus, exit_of, hello_of
from tuimon.view.staleness import MORE, STAYS, Signs, judge
from tuimon.view.stops import Stops
from tuimon.view.store import RunState, Standing

TICK_S = 0.03  # as a live viewer: a third of a frame at 10 Hz
SEEK_TICK_S = 0.3  # there is nothing to see yet, and each picture on the way takes time too
LOOK_EVERY_S = 0.5  # for more of a recording that grows: its recorder writes a few times a second
LONGEST_WAIT_S = 2.0  # of a person, for a training that was paused for an hour
LONGEST_TICK_S = 0.5  # a viewer that was stopped does not leap
SLOWEST, FASTEST = 1 / 8, 4096.0


class ReplaySession:
    """A recording in place of a run. Offers nothing that reaches a training.

    Attributes:
        state: what the records so far add up to.
        playing: whether time goes on.
        speed: recorded seconds a second.
        follows: whether it has come to the end of a run that goes on, and shows what comes.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        path: Path | None = None,
        at: int | None = None,
        playing: bool = True,
        stopwatch: Clock = time.monotonic,
    ) -> None:
        """Begin at the first record, or at the step `at`.

        Args:
            recording: what to show; not read by anybody else at the same time.
            path: the folder it is from, for the other ranks of the run.
            at: the step to go to; `END` is the last one.
            playing: whether time goes on from the beginning.
            stopwatch: seconds that pass for the person.
        """
        self.playing = playing
        self.speed, self.follows, self.folder = 1.0, False, ""
        self._recording = recording
        self._path = path
        self._stopwatch = stopwatch
        self._ticked_s = stopwatch()
        self._now_s: float | None = None  # recorded time of the picture
        self._target: int | None = None
        self._stops = Stops(recording)
        self._measure()
        self._notice = "this run goes on: J end follows it" if recording.grows else ""
        self._rewind()
        # Until the place is reached there is nothing to see, and nothing that has to be drawn.
        self._opening = None if at is None else _begun(recording)
        if at is not None:
            self.go_to(at)

    @property
    def info(self) -> RunInfo | None:
        """The run, as its recording says."""
        return self._recording.info

    @property
    def step(self) -> int | None:
        """The newest step of the picture."""
        return None if self.state.step is None else self.state.step.step

    @property
    def last_step(self) -> int | None:
        """The newest step that is recorded, as far as it is known."""
        return max((s for s in (self.step, self._newest.step) if s is not None), default=None)

    @property
    def is_at_end(self) -> bool:
        """Whether the picture is that of the last record."""
        return self._reel.is_over

    @property
    def is_busy(self) -> bool:
        """Whether it is on its way to a step, or looks for one."""
        return self._target is not None or self._stops.is_looked_for

    def tick(self) -> Frame:
        """Let time pass, take in what was recorded in it, and return the picture."""
        now_s = self._stopwatch()
        passed_s = min(LONGEST_TICK_S, max(0.0, now_s - self._ticked_s))
        self._ticked_s = now_s
        if self._stops.is_looked_for:
            self._look_on(now_s + SEEK_TICK_S)
        if self._recording.grows and now_s >= self._look_at_s:
            self._look_again(now_s)
        if self._target is not None:
            self._approach(self._target, now_s + SEEK_TICK_S)
        elif self.playing and not self._stops.is_looked_for:
            passed_s = math.inf if self.follows else passed_s * self.speed
            self._play(passed_s, now_s + TICK_S)
        at_edge = self.playing and not self.is_busy and (self.follows or self.is_at_end)
        self.follows = self._recording.grows and at_edge
        standing = _standing_of(self, self._recording, self._target)
        self._opening = self._opening if self.is_busy else None
        frame = (self._opening or self.state).frame(standing)
        return replace(frame, replay=_place_of(self, self._now_s))

    def toggle(self) -> None:
        """Play or pause; at an end that stays, play from the beginning again."""
        if self.is_at_end and not self.is_busy and not self._recording.grows:
            self._rewind()
            self.playing = True
        else:
            self.playing = not self.playing

    def change_speed(self, factor: float) -> None:
        """Let time go faster or slower, within bounds."""
        self.speed = min(FASTEST, max(SLOWEST, self.speed * factor))

    def one_step(self) -> None:
        """Go on by one update, and stay there; on the way to a step, go one further."""
        self.playing = False
        if self._target is not None and self._target != END:
            self._target += 1
        elif not self.is_busy:
            self._target = 0 if self.step is None else self.step + 1

    def go_by(self, share: float) -> None:
        """Go back or on by a share of the whole run."""
        last = self.last_step or self.step or 0
        span = max(1, last - (self.first_step or 0))
        here = self._heading_for() or self.first_step or 0
        self.go_to(max(0, (last if here == END else here) + round(span * share)))

    def go_to(self, step: int) -> None:
        """Show the run as it was after this step; `END` is the last one."""
        self._recording.look_again()
        place, history = start_for(self._recording, None if step == END else step)
        here = self.step
        is_clean = self._reel.told <= step  # nothing in the picture is of a later step
        if step == here and is_clean and not self.is_busy:
            return
        self._stops.give_up()
        behind = here is not None and step != END and (step <= here or not is_clean)
        is_ahead = history is not None and place > self._reel.segment_now()
        if behind or is_ahead:
            self._start_at(place, history)
        self._target = step

    def go_to_event(self, *, forward: bool) -> None:
        """Go to the next or the last thing that is not finite or critical."""
        self._stops.look(forward=forward)

    def notice(self) -> str:
        """What there is to say about the last key; once."""
        words, self._notice = self._notice, ""
        return words

    def send(self, command: AnyCommand) -> CommandState:
        """Refuse: nothing reaches a training from here."""
        raise Refused("this is a recording: nothing was sent")

    def look_at(self, rank: int) -> None:
        """Show another rank at the same step."""
        pids = [each.pid for each in (self.info.ranks if self.info else []) if each.rank == rank]
        if not pids or self._path is None or not self._path.is_dir():
            raise NoSuchRun(f"no recording of rank {rank}")
        self._recording = read_recording(self._path, pids[0])
        self._stops = Stops(self._recording)
        self._measure()
        here = self._heading_for()
        self._rewind()
        if here is not None:
            self.go_to(here)

    def close(self) -> None:
        """Nothing is held open."""

    def drain(self) -> None:
        """Take in everything to the end, at once."""
        while (record := self._reel.take()) is not None:
            self.state.apply(record)
        self._target = None

    def _measure(self) -> None:
        """Where the recording begins and ends."""
        self.first_step = first_step_of(self._recording)
        self._newest = Newest(self._recording)
        self._look_at_s = 0.0

    def _look_again(self, now_s: float) -> None:
        """Take note of what has been recorded since."""
        self._look_at_s = now_s + LOOK_EVERY_S
        if self._newest.has_moved():
            self._reel.read_on()

    def _rewind(self) -> None:
        self._start_at(0, self._recording.segments[0].checkpoint())

    def _start_at(self, segment: int, history: History | None) -> None:
        self.state = _begun(self._recording)
        self._reel = Reel(self._recording, segment)
        self._now_s = self._target = None
        self._stops.give_up()
        if history is not None:
            apply_history(self.state, history)

    def _heading_for(self) -> int | None:
        """The step of the picture, or that a key has asked for."""
        return self.step if self._target is None else self._target

    def _play(self, passed_s: float, deadline_s: float) -> None:
        until_s = None if self._now_s is None else self._now_s + passed_s
        while (record := self._reel.peek()) is not None:
            at_s = time_of(record)
            if at_s is not None:
                wait_s = LONGEST_WAIT_S * self.speed
                until_s = at_s if until_s is None else max(until_s, at_s - wait_s)
                if at_s > until_s:
                    break
            self._take()
            if self._stopwatch() >= deadline_s:
                return  # cannot keep up: the time of the picture is that of its newest record
        if not self.is_at_end:  # where the time is that of the newest record
            self._now_s = until_s

    def _approach(self, wanted: int, deadline_s: float) -> None:
        """Take in records up to the step that is wanted, and nothing that is of a later one.

        A batch, a loss or an autopsy is published before the update that it leads to.
        """
        while (record := self._reel.peek()) is not None:
            is_there = wanted != END and self.step is not None and self.step >= wanted
            if is_there and self._reel.is_beyond(record):
                break
            self._take()
            if self._stopwatch() >= deadline_s:
                return
        self._target = None

    def _take(self) -> None:
        record = self._reel.take()
        if record is None:
            return
        self.state.apply(record)
        at_s = time_of(record)
        if at_s is not None:
            self._now_s = at_s if self._now_s is None else max(self._now_s, at_s)

    def _look_on(self, deadline_s: float) -> None:
        if not self._stops.read_on(lambda: self._stopwatch() >= deadline_s):
            return
        found = self._stop()
        self._notice = self._stops.words(found)
        if found is not None:
            self.go_to(found)

    def _stop(self) -> int | None:
        here = self._heading_for()
        if self._stops.forward:
            is_over = here == END or (self._target is None and self.is_at_end)
            return None if is_over else self._stops.after(here)
        if here == END:
            here = self.last_step
        told = self._reel.told if self._target is None else 0
        return self._stops.before(max(here or 0, told))


def _begun(recording: Recording) -> RunState:
    """What is known before the first record."""
    state = RunState()
    if recording.info is not None and recording.info.ranks:
        state.apply(hello_of(recording.info, recording.rank))
    return state


def _standing_of(session: ReplaySession, recording: Recording, target: int | None) -> Standing:
    """What there is to say about the picture."""
    lost = recording.lost
    if recording.left_out:
        lost["thinned out of the recording"] = recording.left_out
    if target is not None:
        where = "the end" if target == END else f"step {count(target)}"
        return Standing(LOADING, f"on the way to {where}", lost=lost)
    if session.is_busy:
        return Standing(LOADING, "looking for what is critical", lost=lost)
    if not session.is_at_end:
        return Standing(LIVE, lost=lost)
    if recording.grows:
        more = "the newest that is recorded so far; space follows what comes"
        return Standing(LIVE, "" if session.playing else more, lost=lost)
    return _ended(session.state, recording.info, lost)


def _place_of(session: ReplaySession, time_s: float | None) -> Replay:
    """Where the picture stands in the recording."""
    return Replay(
        playing=session.playing and (session.follows or not session.is_at_end),
        speed=session.speed,
        first_step=session.first_step,
        last_step=session.last_step,
        time_s=time_s,
        follows=session.follows,
    )


def _ended(state: RunState, info: RunInfo | None, lost: dict[str, int]) -> Standing:
    """How the run stands behind its last record."""
    goodbye = state.goodbye
    said = Exit(goodbye.kind, goodbye.code, goodbye.detail) if goodbye else None
    ended = said or exit_of(info.exit if info else None)
    if ended is None:
        detail = "the end of what was recorded, not that of the run; space plays it again"
        return Standing(LIVE, detail, lost=lost)
    step = None if state.step is None else state.step.step
    signs = Signs(0, True, True, step, None, None, 0.0, said, not_finite=state.finite.words)
    status = SourceStatus(connected=True, alive=False, caught_up=True, exit=ended, lost=lost)
    standing = judge(0.0, status, signs)
    detail = standing.detail.replace(MORE, "").replace(STAYS, "space plays it again")
    return Standing(GONE, detail, exit=standing.exit, lost=lost)


__all__ = ["END", "ReplaySession", "find_recording", "replay_run"]


def replay_run(token: str | None, *, at: int | None = None, playing: bool = True) -> ReplaySession:
    """A session on what was recorded of a run, or on a file or folder.

    Raises:
        NoSuchRun, Refused, IncompatibleVersion: as their messages say.
    """
    path = find_recording(token)
    session = ReplaySession(read_recording(path), path=path, at=at, playing=playing)
    if session.info is not None:
        session.folder = session.info.cwd
    return session
