"""Going to a step of a recording shows that step alone; on and back stop at the same places."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from tests.unit.view.test_replay import (
    BAD,
    INFO,
    PID,
    RECORDS,
    Stopwatch,
    session,
    settled,
    write_recording,
)
from tuimon.feed.registry import RunInfo
from tuimon.model.records import AnyRecord, Batch, Event, Goodbye, Hello, Loss, Step, Symptom
from tuimon.view.frame import GONE, LOADING
from tuimon.view.replay import END, ReplaySession


def a_run_that_blows_up() -> list[AnyRecord]:
    """The scribe lags, and what leads to an update is published before it."""
    records: list[AnyRecord] = [Hello(1, INFO.id, INFO.name, INFO.host, PID)]
    for step in range(60):
        loss = 1.0 if step < 52 else math.inf if step == 52 else math.nan
        records.append(Batch(step, 10**15, "sample"))
        if step >= 53:
            records.append(Loss(step, loss, 10**15))
        if step == 53:
            records += [
                Symptom("explosion", 50, 0, "critical", "it was 1e9"),
                Event(53, 1e6, "critical", "autopsy", "the first NaN"),
            ]
        norm = math.inf if step >= 52 else 1.0
        lost = loss if step != 52 else 1e30
        records.append(Step(step, 10**15 + step * 10**8, loss=lost, grad_norm=norm))
    return records


@pytest.fixture
def blown_up(tmp_path: Path) -> ReplaySession:
    info = replace_info(last_step=59)
    write_recording(tmp_path / "run", a_run_that_blows_up(), info)
    return session(tmp_path / "run", playing=False)


def replace_info(**changes: object) -> RunInfo:
    return msgspec.structs.replace(INFO, **changes)


def test_the_picture_of_a_step_holds_nothing_of_the_next_one(blown_up: ReplaySession) -> None:
    def check(step: int) -> None:
        frame = settled(blown_up)
        assert frame.step == step
        assert blown_up.state.series["loss"].last_step == step
        assert repr(blown_up.state.series["loss"].last) in ("1.0", "1e+30")
        assert frame.alert is None
        assert all((each.step or 0) <= step for each in frame.events)
        assert frame.batch is not None and frame.batch.step == step

    blown_up.go_to(52)
    check(52)
    blown_up.one_step()
    assert settled(blown_up).step == 53
    assert repr(blown_up.state.series["loss"].last) == "nan"
    assert blown_up.state.series["loss"].last_step == 53
    blown_up.go_to_event(forward=False)
    check(52)
    blown_up.one_step()
    settled(blown_up)
    blown_up.go_by(-1 / 59)
    check(52)


def test_a_picture_that_has_seen_the_next_loss_is_made_anew(blown_up: ReplaySession) -> None:
    blown_up.go_to(52)
    settled(blown_up)
    while not isinstance(blown_up._reel.peek(), Step):
        blown_up._take()  # as playing does: by time
    assert blown_up.state.series["loss"].last_step == 53
    blown_up.go_to(52)
    assert settled(blown_up).step == 52
    assert blown_up.state.series["loss"].last_step == 52


def test_the_way_on_and_the_way_back_stop_at_the_same_places(blown_up: ReplaySession) -> None:
    on, back = [], []
    blown_up.go_to(20)
    settled(blown_up)
    for _ in range(20):
        blown_up.go_to_event(forward=True)
        on.append(settled(blown_up).step)
        if "nothing" in (words := blown_up.notice()):
            break
        assert words.startswith(f"step {on[-1]}: ")
    for _ in range(20):
        blown_up.go_to_event(forward=False)
        back.append(settled(blown_up).step)
        if "nothing" in blown_up.notice():
            break
    assert on == [50, 52, 52], "what goes on is one stop"
    assert back == [50, 50]


def test_each_stretch_and_each_kind_of_event_is_one_stop(tmp_path: Path) -> None:
    records: list[AnyRecord] = [Hello(1, INFO.id, INFO.name, INFO.host, PID)]
    for step in range(40):
        is_bad = 5 <= step < 15 or 20 <= step < 25
        if step == 22:  # the scribe lags
            records.append(Symptom("non-finite-loss", 20, 0, "critical", "NaN"))
            records.append(Symptom("non-finite-loss", 19, 0, "critical", "NaN"))
        if step in (8, 9, 10, 32):
            records.append(Symptom("explosion", step, 0, "critical", "it was 1e9"))
        if step == 6:
            records.append(Event(6, 1e6, "critical", "autopsy", "the first NaN"))
        loss = math.nan if is_bad else 1.0
        records.append(Step(step, 10**15 + step * 10**8, loss=loss, grad_norm=1.0))
    write_recording(tmp_path / "run", records, replace_info(last_step=39))
    replay = session(tmp_path / "run", playing=False)
    replay.go_to(0)
    for forward, wanted in ((True, [5, 8, 19, 32]), (False, [19, 8, 5])):
        found = []
        for _ in wanted:
            replay.go_to_event(forward=forward)
            found.append(settled(replay).step)
        assert found == wanted
    replay.go_to(12)
    settled(replay)
    replay.go_to_event(forward=False)
    assert settled(replay).step == 8


def test_nothing_is_drawn_before_the_place_to_begin_at_is_reached(tmp_path: Path) -> None:
    write_recording(tmp_path / "run", RECORDS)
    clock = Stopwatch(each_look_s=0.01)
    replay = session(tmp_path / "run", playing=False, at=1950, stopwatch=clock)
    seen = [replay.tick()]
    while seen[-1].state == LOADING:
        seen.append(replay.tick())
    assert len(seen) > 3 and not any(each.series for each in seen[:-1])
    assert {each.name for each in seen} == {INFO.name}
    assert seen[-1].series and seen[-1].step == 1950
    replay.go_to(10)
    assert replay.tick().series, "a picture that is there stays until the next"


def test_a_key_on_the_way_does_not_end_it(tmp_path: Path) -> None:
    write_recording(tmp_path / "run", RECORDS)
    replay = session(tmp_path / "run", playing=False, stopwatch=Stopwatch(each_look_s=0.01))
    replay.go_to(350)
    replay.tick()
    replay.one_step()
    replay.toggle()
    assert settled(replay).step == 351
    replay.playing = False
    replay.go_to(END)
    replay.tick()
    replay.one_step()
    assert settled(replay).state == GONE
    replay.go_to(10)
    replay.go_to_event(forward=True)
    replay.tick()
    replay.one_step()
    assert settled(replay).step == BAD[0]


def test_a_training_that_dies_before_its_update_is_seen_to_its_end(tmp_path: Path) -> None:
    records = [*a_run_that_blows_up()[:-1], Goodbye("exception", 1, "ValueError", 58, 2e6)]
    write_recording(tmp_path / "run", records, replace_info(last_step=58))
    replay = session(tmp_path / "run", playing=False)
    replay.go_to(END)
    assert settled(replay).step == 58
    assert replay.state.series["loss"].last_step == 59
    replay.go_to_event(forward=True)
    settled(replay)
    assert replay.notice() == "nothing critical after this step"
    replay.go_to(58)
    assert settled(replay).step == 58
    assert replay.state.series["loss"].last_step == 58
    replay.go_to(59)
    assert settled(replay).state == GONE
