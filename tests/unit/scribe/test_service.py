"""One turn of the scribe at a time, in this process, with a clock that the test turns."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from tuimon.diagnose.engine import Engine
from tuimon.feed.codec import decode, encode
from tuimon.feed.history import read_history
from tuimon.feed.registry import RankInfo, RunInfo, create_run, load, save
from tuimon.feed.ring import RingReader, RingWriter
from tuimon.model.records import Event, Goodbye, Hello, Record, RingLost, Step
from tuimon.scribe.follower import how_it_ended
from tuimon.scribe.service import FOLDER_EVERY_S, HISTORY_EVERY_S, IDLE_WAIT_S, Scribe
from tuimon.scribe.trainer import Trainer


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A run of this very process, its ring, and the scribe that serves it."""

    def __init__(self, report: str | None = None) -> None:
        self.info: RunInfo = create_run(name="n", argv=["a"], report=report)
        ticks = self.info.ranks[0].start_ticks
        self.ring = RingWriter.create(self.info.ring(), 1 << 20, start_ticks=ticks)
        self.clock = Clock()
        self.scribe = Scribe(self.info, clock=self.clock, unix_time=self.clock)
        self.put(Hello(1, self.info.id, "n", "h", os.getpid()))

    def put(self, record: Record) -> None:
        assert self.ring.publish(encode(record))

    def turn_after(self, seconds: float) -> bool:
        self.clock.now_s += seconds
        return self.scribe.turn()

    def report(self) -> dict[str, object]:
        document: dict[str, object] = json.loads((self.info.path / "report.json").read_text())
        return document


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_history_is_written_when_something_changed(bench: Bench):
    file = bench.info.path / "history.bin"
    bench.put(Step(0, 0, loss=1.0))
    assert bench.turn_after(0.0)
    assert not file.exists()
    assert bench.turn_after(HISTORY_EVERY_S)
    history = read_history(file)
    assert history is not None
    assert (history.up_to_sequence, history.totals.last_step) == (2, 0)


def test_a_launcher_that_was_killed_is_told_while_the_ranks_go_on(bench: Bench):
    bench.put(Step(0, 0, loss=1.0))
    assert bench.turn_after(0.0)
    gone = RankInfo(0, 1 << 30, 7, "none.ring")
    save(structs.replace(bench.info, launcher=gone, world_size=2))
    for _ in range(3):
        assert bench.turn_after(1.0)
    told = [decode(each) for each in RingReader(bench.info.scribe_ring).read(1000, 1.0)]
    (event,) = (each for each in told if isinstance(each, Event))
    assert (event.kind, event.severity) == ("launcher-gone", "warning")
    assert f"(pid {1 << 30}) ended without a last word" in event.text and "go on" in event.text


def test_run_json_that_vanished_is_written_again(bench: Bench):
    (bench.info.path / "run.json").unlink()
    assert bench.turn_after(FOLDER_EVERY_S)
    assert load(bench.info.path) == bench.info


def test_a_deleted_folder_ends_the_scribe_quietly(bench: Bench, capfd: pytest.CaptureFixture[str]):
    shutil.rmtree(bench.info.path)
    assert not bench.turn_after(FOLDER_EVERY_S)
    assert not bench.info.path.exists()
    assert capfd.readouterr() == ("", "")


def test_a_deleted_folder_does_not_cost_the_report_that_was_asked_for(tmp_path: Path):
    target = tmp_path / "r.json"
    bench = Bench(str(target))
    assert bench.turn_after(0.0)
    shutil.rmtree(bench.info.path)
    bench.put(Step(0, 0, loss=1.0))
    assert bench.turn_after(FOLDER_EVERY_S)
    bench.put(Goodbye("ok", 0))
    assert not bench.turn_after(0.1)
    assert json.loads(target.read_text())["run"]["steps"] == 1
    assert not bench.info.path.exists()


def test_records_that_do_not_decode_are_counted(bench: Bench):
    assert bench.ring.publish(b"\xc1 not a record")
    bench.put(RingLost(2, "too large"))
    bench.put(Goodbye("ok", 0))
    assert not bench.turn_after(0.1)
    assert bench.report()["lost"] == {
        "records": 3,
        "reasons": {"too large": 2, "undecodable": 1},
    }


def test_a_detector_that_fails_costs_neither_history_nor_report(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    def fails(self: Engine, record: Record) -> list[object]:
        raise ZeroDivisionError

    monkeypatch.setattr(Engine, "see", fails)
    bench.put(Step(0, 0, loss=1.0))
    bench.put(Goodbye("ok", 0))
    assert not bench.turn_after(0.1)
    history = read_history(bench.info.path / "history.bin")
    assert history is not None
    assert [event.kind for event in history.events] == ["diagnosis"]
    assert bench.report()["outcome"] == "healthy"


def test_steps_whose_records_are_missing_count_by_the_header(bench: Bench):
    bench.put(Step(3, 0, loss=1.0))
    bench.ring.set_state(0, 9)
    bench.put(Goodbye("ok", 0))
    assert not bench.turn_after(0.1)
    assert bench.report()["run"]["steps"] == 10  # type: ignore[index]


def test_a_ring_at_rest_is_looked_at_less_often(bench: Bench):
    bench.scribe.turn()
    busy_s = bench.scribe.wait_s
    for _ in range(20):
        bench.scribe.turn()
    assert busy_s < bench.scribe.wait_s == IDLE_WAIT_S
    bench.put(Step(0, 0))
    bench.scribe.turn()
    assert bench.scribe.wait_s == busy_s


def test_a_report_of_another_rank_stays_in_its_folder(tmp_path: Path):
    info = create_run(name="n", argv=[], rank=1, world_size=2, report=str(tmp_path / "r.json"))
    ring = RingWriter.create(info.ring(), 1 << 20)
    ring.publish(encode(Goodbye("ok", 0)))
    assert not Scribe(info).turn()
    assert (info.path / "report.json").exists()
    assert not (tmp_path / "r.json").exists()


def test_how_a_run_ended():
    assert how_it_ended(Goodbye("exception", 1, "a\nb"), 3).detail == "a b"
    assert "before its first step" in how_it_ended(None, None).detail
    assert how_it_ended(None, 1234).kind == "killed"
    assert "after step 1,234" in how_it_ended(None, 1234).detail


def test_a_pid_that_passed_to_another_process_counts_as_gone():
    assert Trainer(os.getpid(), 1).is_gone
    assert not Trainer(os.getpid(), create_run(name="n", argv=[]).ranks[0].start_ticks).is_gone
    assert Trainer(2**22 + 1, 1).is_gone
