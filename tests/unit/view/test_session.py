"""The session with a source, a finder and clocks of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tuimon.errors import IncompatibleVersion, NoSuchRun, Refused
from tuimon.feed.history import History
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.model.commands import Pause
from tuimon.model.records import AnyRecord, CommandState, Event, Goodbye, Step, System
from tuimon.view.frame import GONE, LATE, LIVE, LOADING, OTHER_VERSION, SILENT, WAITING
from tuimon.view.session import LOOK_EVERY_S, Session
from tuimon.view.source import SourceStatus

INFO = RunInfo("id", "name", "host", 0, "/nowhere", ranks=[RankInfo(0, 7, 1, "7.ring")])


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeSource:
    """Serves prepared records, as many a poll as it is asked for."""

    records: list[AnyRecord] = field(default_factory=list)
    standing: SourceStatus = field(
        default_factory=lambda: SourceStatus(connected=True, caught_up=True)
    )
    info: RunInfo = INFO
    history: History | None = None
    polls: int = 0
    closed: bool = False
    on_poll: object = None

    def open(self) -> History | None:
        return self.history

    def poll(self, max_records: int, max_s: float) -> list[AnyRecord]:
        self.polls += 1
        if callable(self.on_poll):
            self.on_poll()
        taken, self.records = self.records[:max_records], self.records[max_records:]
        return taken

    def status(self) -> SourceStatus:
        return self.standing

    def close(self) -> None:
        self.closed = True


class FakeCommanding(FakeSource):
    def send(self, command: Pause) -> CommandState:
        state = CommandState("1", command.title, "sent")
        self.records.append(state)
        return state


def session_on(source: FakeSource, clock: Clock | None = None) -> Session:
    return Session(lambda: INFO, lambda _: source, clock=clock or Clock())


def steps(count: int) -> list[AnyRecord]:
    return [Step(i, int((990 + i / 100) * 1e9), step_s=0.01, loss=1.0) for i in range(count)]


def test_a_tick_reads_everything_that_fits():
    source = FakeSource(steps(1000))
    frame = session_on(source).tick()
    assert frame.step == 999 and frame.state == LIVE and frame.name == "name" and frame.pid == 7


def test_a_tick_is_bounded_in_time():
    clock, stopwatch = Clock(), Clock()
    source = FakeSource(steps(5000))

    def slow() -> None:
        stopwatch.now_s += 0.02

    source.on_poll = slow
    session = Session(lambda: INFO, lambda _: source, clock=clock, stopwatch=stopwatch)
    session.tick()
    assert 0 < source.polls <= 6 and source.records
    while source.records:
        session.tick()
    assert session.tick().step == 4999


def test_silence_grows_with_the_clock():
    clock = Clock(992.0)
    session = session_on(FakeSource(steps(200)), clock)
    seen = []
    for now_s in (992.0, 995.0, 1030.0):
        clock.now_s = now_s
        seen.append(session.tick().state)
    assert seen == [LIVE, LATE, SILENT]


def test_readings_that_stopped_coming_are_not_shown_as_the_present():
    clock = Clock(1000.0)
    source = FakeSource([*steps(200), System(1000.0, host_cpu_frac=0.5)])
    session = session_on(source, clock)
    fresh = session.tick().system
    assert fresh is not None and fresh.host_cpu_frac == 0.5
    clock.now_s = 1040.0
    stale = session.tick().system
    assert stale is not None and stale.host_cpu_frac is None
    assert stale.device_note == "no reading for 40 s"
    source.records = [System(1040.0, host_cpu_frac=0.25)]
    again = session.tick().system
    assert again is not None and again.host_cpu_frac == 0.25
    source.standing = SourceStatus(connected=True, alive=False, caught_up=True)
    clock.now_s = 2000.0
    end = session.tick()
    assert end.state == GONE and end.system == again  # the last word of a run stays


def test_it_waits_for_a_run_without_hurry():
    stopwatch = Clock()
    looks: list[float] = []
    runs: list[RunInfo] = []

    def find() -> RunInfo:
        looks.append(stopwatch.now_s)
        if not runs:
            raise NoSuchRun("none")
        return runs[0]

    source = FakeSource(steps(1))
    session = Session(find, lambda _: source, clock=Clock(), stopwatch=stopwatch)
    assert session.tick().state == WAITING
    assert session.tick().state == WAITING and len(looks) == 1
    runs.append(INFO)
    stopwatch.now_s += LOOK_EVERY_S
    assert session.tick().step == 0


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (IncompatibleVersion("run has format 9"), OTHER_VERSION),
        (Refused("belongs to somebody else"), WAITING),
    ],
)
def test_a_run_that_cannot_be_read_is_explained(error, state):
    def find() -> RunInfo:
        raise error

    frame = Session(find, lambda _: FakeSource(), clock=Clock()).tick()
    assert frame.state == state and frame.state_detail == str(error)


def test_commands_need_a_run_that_lives_and_a_source_that_sends():
    waiting = Session(lambda: (_ for _ in ()).throw(NoSuchRun("none")), lambda _: FakeSource())
    waiting.tick()
    with pytest.raises(NoSuchRun):
        waiting.send(Pause())
    readonly = session_on(FakeSource())
    readonly.tick()
    with pytest.raises(Refused):
        readonly.send(Pause())
    session = session_on(FakeCommanding())
    session.tick()
    assert session.send(Pause()).state == "sent"
    assert [state.state for state in session.tick().commands] == ["sent"]


def test_at_the_end_pending_commands_expire():
    source = FakeCommanding()
    session = session_on(source)
    session.tick()
    session.send(Pause())
    session.tick()
    source.standing = SourceStatus(connected=True, alive=False, caught_up=True)
    frame = session.tick()
    assert frame.state == GONE and [state.state for state in frame.commands] == ["expired"]
    with pytest.raises(NoSuchRun):
        session.send(Pause())
    session.close()
    assert source.closed


def test_the_history_comes_before_the_records():
    history = History("id", 5, events=[Event(1, 1.0, "critical", "k", "old")])
    source = FakeSource([Event(2, 2.0, "info", "k", "new"), Goodbye("ok", 0)], history=history)
    frame = session_on(source).tick()
    assert [event.text for event in frame.events] == ["old", "new"]
    assert frame.alert.text == "old" and frame.state == GONE


def test_a_long_backlog_is_loading_until_it_is_read():
    source = FakeSource(standing=SourceStatus(connected=True))
    assert session_on(source).tick().state == LOADING
