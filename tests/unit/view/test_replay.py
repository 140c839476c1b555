"""A recorded run is seen as the live one was: played, seeked to any step, or drained at once."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tuimon.errors import NoSuchRun, Refused
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import encode
from tuimon.feed.recorder import Recorder
from tuimon.feed.recording import read_recording
from tuimon.feed.registry import ExitInfo, RankInfo, RunInfo
from tuimon.model.commands import Pause
from tuimon.model.records import (
    NAN,
    AnyRecord,
    Batch,
    CommandState,
    Event,
    Facts,
    Goodbye,
    Hello,
    LayerTable,
    Loss,
    Memory,
    Output,
    Scalars,
    Step,
    Symptom,
    System,
)
from tuimon.view.frame import GONE, LIVE, LOADING, Frame
from tuimon.view.replay import END, ReplaySession
from tuimon.view.source import hello_of
from tuimon.view.store import RunState, Standing

PID = 77
LAYERS = 12
INFO = RunInfo(
    "abcd1234",
    "night",
    "here",
    0,
    "/x",
    ranks=[RankInfo(0, PID, 5, "77.ring")],
    exit=ExitInfo("exception", 1, "ValueError"),
    last_step=1999,
)
BAD = (700, 1500)


class Stopwatch:
    """Time goes on only when the test says so, or a little with every look."""

    def __init__(self, each_look_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.each_look_s = each_look_s

    def __call__(self) -> float:
        self.now_s += self.each_look_s
        return self.now_s


def a_run(steps: int = 2000) -> list[AnyRecord]:
    random = np.random.default_rng(1)
    table = LayerTable(0, [f"w{i}" for i in range(LAYERS)])
    records: list[AnyRecord] = [
        Hello(1, INFO.id, INFO.name, INFO.host, PID, total_steps=steps),
        table,
        Facts(["Adam"]),
    ]
    for step in range(steps):
        bad = step in BAD
        norms = random.random(LAYERS, np.float32)
        if bad:
            records.append(Loss(step, math.nan, step * 10**8))
        records.append(
            Step(
                step,
                1_000_000_000_000 + step * 10**8,  # ten a second
                loss=math.nan if bad else float(random.random()),
                grad_norm=float(random.random()),
                lrs=[0.1],
                loss_scale=1024.0,
                norms=norms.tobytes(),
                flags=bytes([NAN] + [0] * (LAYERS - 1)) if bad else b"",
                step_s=0.1,
                skipped=step % 333 == 1,
                data_epoch=step // 500,
                batch_index=step % 500,
            )
        )
        if bad:
            records.append(Symptom("non-finite-loss", step, 0, "critical", "it is NaN"))
        if step % 90 == 3:
            now_s = 1000 + step / 10
            records += [
                System(now_s, host_cpu_frac=0.5),
                Memory(now_s, "cpu", allocated_bytes=step),
                Scalars(step, {"eval/loss": 1 / (step + 1)}),
                Batch(step, 0),
                Output(now_s, "output", f"step {step}"),
                Event(step, now_s, "info", "mark", "a mark"),
                CommandState(f"c{step}", Pause().title, "applied", step=step),
                table,  # published again for whoever comes late
            ]
    return [*records, Goodbye("exception", 1, "ValueError", steps - 1, 1200.0)]


RECORDS = a_run()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of several segments, most with a checkpoint."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    write_recording(folder, RECORDS)
    return folder


def write_recording(folder: Path, records: list[AnyRecord], info: RunInfo = INFO) -> None:
    """As a scribe does, with a checkpoint every 400 steps."""
    chronicle = Chronicle(INFO.id)
    recorder = Recorder(folder, info, PID, max_bytes=64 << 20, keep_free_bytes=0)
    for sequence, record in enumerate(records, 1):
        chronicle.add(record)
        recorder.append(encode(record), sequence)
        if isinstance(record, Step) and record.step % 400 == 399:
            seen = chronicle.snapshot(up_to_sequence=sequence, scribe_sequence=0, written_at_s=0.0)
            recorder.begin(seen, record.step)
    recorder.close()


def session(folder: Path, **options: object) -> ReplaySession:
    return ReplaySession(read_recording(folder), path=folder, **options)  # type: ignore[arg-type]


def live(until_step: int | None = None) -> RunState:
    """The store that a viewer had who was there all the time."""
    state = RunState()
    state.apply(hello_of(INFO))
    for record in RECORDS:
        if isinstance(record, Step | Loss) and until_step is not None and record.step > until_step:
            break
        state.apply(record)
    return state


def settled(replay: ReplaySession) -> Frame:
    frame = replay.tick()
    for _ in range(10_000):
        if not replay.is_busy:
            return frame
        frame = replay.tick()
    raise AssertionError("it never arrives")


def same(left: RunState, right: RunState) -> bool:
    """Everything that a picture is made of."""
    one, other = left.frame(Standing()), right.frame(Standing())
    assert one.series.keys() == other.series.keys()
    end = (one.step or 0) + 1
    for name, series in one.series.items():
        twin = other.series[name]
        assert (series.count, series.first_step, series.last_step) == (
            twin.count,
            twin.first_step,
            twin.last_step,
        )
        assert repr((series.last, series.ema, series.minimum, series.maximum)) == repr(
            (twin.last, twin.ema, twin.minimum, twin.maximum)
        )
        mine, theirs = series.envelope(0, end, 97), twin.envelope(0, end, 97)
        for part in ("low", "high", "mean", "flags"):
            np.testing.assert_array_equal(getattr(mine, part), getattr(theirs, part))
    if one.heat is not None and other.heat is not None:
        groups = [[layer] for layer in range(LAYERS)]
        np.testing.assert_array_equal(
            one.heat.cells(groups, 0, end, 60), other.heat.cells(groups, 0, end, 60)
        )
    apart = {"series", "heat", "samples", "past"}
    for each in fields(Frame):
        if each.name not in apart:
            assert repr(getattr(one, each.name)) == repr(getattr(other, each.name)), each.name
    return True


def test_a_replay_drained_to_the_end_is_the_live_store(folder: Path) -> None:
    replay = session(folder)
    replay.drain()
    assert same(replay.state, live())


def test_played_at_any_speed_it_comes_to_the_same(folder: Path) -> None:
    watch = Stopwatch()
    replay = session(folder, stopwatch=watch)
    replay.change_speed(64)
    seen = []
    for _ in range(200):
        watch.now_s += 0.1
        seen.append(replay.tick().step)
        if replay.is_at_end:
            break
    steps = [step for step in seen if step is not None]
    assert steps == sorted(steps)
    assert len(set(steps)) > 20
    assert same(replay.state, live())
    frame = replay.tick()
    assert frame.state == GONE
    assert frame.exit is not None and frame.exit.kind == "exception"
    assert "plays it again" in frame.state_detail
    replay.toggle()
    watch.now_s += 0.1
    assert (replay.tick().step or 0) < 100


def test_time_goes_on_as_it_was_recorded(folder: Path) -> None:
    watch = Stopwatch()
    replay = session(folder, stopwatch=watch)
    assert replay.tick().step == 0
    watch.now_s += 0.45
    assert replay.tick().step == 4  # ten a second
    replay.change_speed(2)
    watch.now_s += 0.4
    frame = replay.tick()
    assert frame.step == 12
    assert frame.replay is not None
    assert (frame.replay.playing, frame.replay.speed, frame.replay.last_step) == (True, 2.0, 1999)
    replay.toggle()
    watch.now_s += 60
    assert replay.tick().step == 12
    replay.toggle()
    watch.now_s += 60  # a viewer that was stopped does not leap
    assert replay.tick().step == 22
    replay.one_step()
    assert settled(replay).step == 23
    assert not replay.playing


@pytest.mark.parametrize("step", [0, 250, 399, 400, 699, 701, 1999])
def test_seeking_shows_the_run_as_it_was_then(folder: Path, step: int) -> None:
    replay = session(folder, playing=False)
    replay.go_to(step)
    frame = settled(replay)
    assert frame.step == step
    then = live(step)
    now = replace(frame, replay=None)
    was = then.frame(Standing(LIVE))
    assert [(each.step, each.kind) for each in now.events if each.kind == "mark"] == [
        (each.step, each.kind) for each in was.events if each.kind == "mark"
    ]
    assert len(now.events) == len(was.events)
    for name in ("commands", "lrs", "data", "batch", "layers", "facts", "memory"):
        assert repr(getattr(now, name)) == repr(getattr(was, name)), name
    for name, series in then.series.items():
        found = replay.state.series[name]
        assert (found.last_step, found.first_step) == (series.last_step, series.first_step)
        assert found.last == pytest.approx(series.last, nan_ok=True)
        assert found.minimum == pytest.approx(series.minimum)


def test_seeking_in_a_run_that_goes_on(tmp_path: Path) -> None:
    running = RunInfo("abcd1234", "night", "here", 0, "/x", ranks=INFO.ranks)
    write_recording(tmp_path / "run", RECORDS[:-700], running)
    replay = session(tmp_path / "run", playing=False)
    for step in (1250, 30, 1301):
        replay.go_to(step)
        assert settled(replay).step == step
    replay.go_to(10_000)
    frame = settled(replay)
    assert frame.state == LIVE
    assert "the newest that is recorded so far" in frame.state_detail
    assert frame.replay is not None
    assert frame.replay.last_step == frame.step == 1358


def test_back_and_forth(folder: Path) -> None:
    replay = session(folder, playing=False)
    replay.go_to(1200)
    assert settled(replay).step == 1200
    replay.go_by(-0.05)
    assert settled(replay).step == 1200 - 100
    replay.go_by(0.5)
    replay.go_by(-10.0)
    assert settled(replay).step == 0
    replay.go_to(END)
    assert settled(replay).state == GONE
    replay.go_by(-0.05)
    frame = settled(replay)
    assert frame.state == LIVE
    assert frame.step == 1999 - 100


def test_a_step_is_reached_without_reading_from_the_beginning(folder: Path) -> None:
    replay = session(folder, playing=False)
    replay.go_to(1990)
    settled(replay)
    assert replay._reel.segment == 4


def test_seeking_takes_pieces_of_a_tick(folder: Path) -> None:
    replay = session(folder, playing=False, stopwatch=Stopwatch(each_look_s=0.01))
    replay.go_to(350)
    frame = replay.tick()
    assert frame.state == LOADING
    assert "350" in frame.state_detail
    assert settled(replay).step == 350


def test_the_next_and_the_last_event(folder: Path) -> None:
    replay = session(folder, playing=False)
    for step in BAD:
        replay.go_to_event(forward=True)
        assert settled(replay).step == step
    replay.go_to_event(forward=True)
    assert settled(replay).step == BAD[1]
    assert replay.notice() == "nothing critical after this step"
    replay.go_to_event(forward=False)
    assert settled(replay).step == BAD[0]
    replay.go_to_event(forward=False)
    assert settled(replay).step == BAD[0]
    assert replay.notice() == "nothing critical before this step"


def test_a_pause_of_the_training_is_not_waited_for(tmp_path: Path) -> None:
    hours = [Step(0, 10**15), Step(1, 10**15 + 10**12), Step(2, 10**15 + 10**12 + 10**8)]
    recorder = Recorder(tmp_path / "run", INFO, PID, keep_free_bytes=0)
    for each in hours:
        recorder.append(encode(each))
    recorder.close()
    watch = Stopwatch()
    replay = session(tmp_path / "run", stopwatch=watch)
    replay.tick()
    for _ in range(6):
        watch.now_s += 0.5
        replay.tick()
    assert replay.step == 2


def test_nothing_can_be_sent(folder: Path) -> None:
    replay = session(folder)
    with pytest.raises(Refused, match="recording"):
        replay.send(Pause())
    with pytest.raises(NoSuchRun):
        replay.look_at(3)


def test_what_is_damaged_is_counted_where_it_is_shown(folder: Path, tmp_path: Path) -> None:
    file = sorted(folder.glob("*.tuimon"))[1]
    data = bytearray(file.read_bytes())
    data[-3000:-2000] = bytes(1000)
    (tmp_path / "one.tuimon").write_bytes(data)
    replay = session(tmp_path / "one.tuimon")
    for _ in range(2):  # the same damage is not counted twice
        replay.drain()
        lost = replay.tick().lost
        assert lost == {"damaged": lost["damaged"]}
        assert 3 <= lost["damaged"] <= 12
        replay.go_to(450)
        settled(replay)


def test_another_rank_is_shown_at_the_same_step(tmp_path: Path) -> None:
    ranks = [RankInfo(0, PID, 5, "77.ring"), RankInfo(1, 78, 5, "78.ring")]
    both = RunInfo("abcd1234", "night", "here", 0, "/x", ranks=ranks, world_size=2)
    write_recording(tmp_path / "run", RECORDS[:300], both)
    second = Recorder(tmp_path / "run", both, 78, keep_free_bytes=0)
    for step in range(200):
        second.append(encode(Step(step, 10**18 + step, loss=5.0)), step + 1)
    second.close()
    replay = session(tmp_path / "run", playing=False)
    replay.go_to(120)
    assert settled(replay).rank == 0
    replay.look_at(1)
    frame = settled(replay)
    assert (frame.rank, frame.step, frame.world_size) == (1, 120, 2)
    assert frame.series["loss"].last == 5.0
    with pytest.raises(NoSuchRun):
        replay.look_at(2)
