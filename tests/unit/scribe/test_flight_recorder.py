"""What the scribe records of a run, and that a trouble with the disk is one event."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.unit.scribe.test_service import Bench
from tuimon.feed import recordings
from tuimon.feed.codec import encode
from tuimon.feed.recorder import Recorder
from tuimon.feed.recording import read_recording
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.model.records import Event, Goodbye, Hello, Loss, Output, Step, System


def kinds_of(bench: Bench) -> list[type]:
    return [type(record) for _, record in read_recording(folder_of(bench)).records()]


def folder_of(bench: Bench) -> Path:
    return recordings.folder_of(bench.info)


def events_of(bench: Bench, kind: str) -> list[Event]:
    found = read_recording(folder_of(bench)).records()
    return [each for _, each in found if isinstance(each, Event) and each.kind == kind]


def test_everything_on_the_wire_is_recorded_as_it_comes():
    bench = Bench()
    bench.put(Step(0, 0, loss=1.0))
    bench.info.output.write_text("epoch 1\n")
    assert bench.turn_after(0.0)
    assert kinds_of(bench)[:2] == [Hello, Step]
    bench.put(Step(1, 0, loss=float("nan")))
    bench.put(Loss(1, float("nan")))
    assert bench.turn_after(1.0)
    kinds = kinds_of(bench)
    assert {Hello, Step, System, Loss, Output} <= set(kinds)
    found = read_recording(folder_of(bench))
    ring = [sequence for sequence, record in found.records() if isinstance(record, Step | Loss)]
    assert ring == [2, 3, 4]
    assert found.info is not None and found.info.id == bench.info.id


def test_it_says_how_the_run_ended_and_outlives_its_folder(monkeypatch: pytest.MonkeyPatch):
    bench = Bench()
    bench.put(Step(0, 0, loss=1.0))
    bench.put(Goodbye("stopped", 0, "by request"))
    bench.ring.close()
    assert not bench.turn_after(0.0)
    found = recordings.find_recording(bench.info.id)
    assert found == folder_of(bench)
    recording = read_recording(found)
    assert recording.info is not None and recording.info.exit is not None
    assert (recording.info.exit.kind, recording.info.last_step) == ("stopped", 0)
    assert kinds_of(bench)[-1] is not Step


def test_it_is_left_out_where_nobody_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuimon.toml").write_text("[record]\non = false\n")
    bench = Bench()
    assert bench.turn_after(0.0)
    assert not folder_of(bench).exists()


def test_wrong_settings_are_one_event_and_the_usual_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuimon.toml").write_text("[record]\nmax_bytes = 3\n")
    bench = Bench()
    for _ in range(3):
        assert bench.turn_after(0.1)
    (event,) = events_of(bench, "recording")
    assert "recorded as usual" in event.text


def test_a_folder_that_cannot_be_made_is_one_event(tmp_path: Path):
    bench = Bench()
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / "tuimon").mkdir(exist_ok=True)
    recordings.recordings_folder().write_text("in the way")
    for _ in range(3):
        assert bench.turn_after(0.1)
    told = [each for each in bench.scribe._crew.lead.chronicle._events if each.kind == "recording"]
    assert len(told) == 1
    assert "nothing is recorded" in told[0].text


def kept(name: str, age_s: float) -> RunInfo:
    info = RunInfo(
        name * 8, name, "here", os.getuid(), f"/x/{name * 8}", ranks=[RankInfo(0, 1, 1, "")]
    )
    folder = recordings.folder_of(info)
    recorder = Recorder(folder, info, 1, keep_free_bytes=0)
    recorder.append(encode(Goodbye("ok")))
    recorder.close()
    for file in folder.iterdir():
        os.utime(file, (time.time() - age_s,) * 2)
    return info


def test_old_recordings_and_those_beyond_the_number_go():
    runs = [kept(name, age_s) for name, age_s in (("a", 10), ("b", 20), ("c", 5000), ("d", 30))]
    swept = recordings.sweep(time.time(), max_age_s=1000, keep_runs=2)
    assert sorted(swept) == sorted([runs[2].id, runs[3].id])
    assert {each.info.name for each in recordings.list_recordings()} == {"a", "b"}


def test_a_run_that_goes_on_is_never_swept():
    bench = Bench()
    assert bench.turn_after(0.0)
    kept("a", 0)
    assert recordings.sweep(time.time() + 1e9, max_age_s=1, keep_runs=1) == ["a" * 8]
    assert folder_of(bench).exists()


def test_a_folder_under_another_name_is_left_alone():
    info = kept("a", 1e6)
    folder = recordings.folder_of(info)
    folder.rename(folder.with_name("mine"))
    assert recordings.sweep(time.time(), max_age_s=1) == []
    assert folder.with_name("mine").exists()
