"""The flight recorder beside a real process: a scribe that is killed, a disk that is full."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.test_scribe import Run, eventually
from tuimon.errors import NoSuchRun
from tuimon.feed import recordings
from tuimon.feed.recording import Recording, read_recording
from tuimon.feed.registry import load
from tuimon.model.records import Event, Goodbye, LayerTable, Step
from tuimon.view.replay import replay_run


@pytest.fixture
def run() -> Iterator[Run]:
    started = Run()
    yield started
    started.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three MiB in the place of the recordings."""
    folder = recordings.recordings_folder()
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "none", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may mount no file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def recorded(run: Run) -> Recording:
    return read_recording(recordings.folder_of(load(run.folder)))


def steps_of(run: Run) -> list[int]:
    with contextlib.suppress(NoSuchRun):  # the scribe has not read anything yet
        return [each.step for _, each in recorded(run).records() if isinstance(each, Step)]
    return []


def test_a_scribe_that_is_killed_while_it_writes_leaves_what_was_whole(run: Run) -> None:
    run.tell("steps 50")
    eventually(lambda: len(steps_of(run)) == 50, "the first steps are recorded")
    for _ in range(10):
        run.tell("flood 500")
    os.kill(run.scribe, signal.SIGKILL)
    run.tell("flood 500")  # the training goes on
    found = recorded(run)
    records = [record for _, record in found.records()]
    steps = [each.step for each in records if isinstance(each, Step)]
    assert steps == list(range(len(steps)))
    assert len(steps) >= 50
    assert set(found.lost) <= {"torn"}
    assert any(isinstance(each, LayerTable) for each in records)
    session = replay_run(load(run.folder).id)
    session.drain()
    assert session.tick().step == len(steps) - 1


def test_a_full_disk_is_one_event_and_the_training_goes_on(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tuimon.toml").write_text("[record]\nmax_bytes = 1048576\n")
    monkeypatch.chdir(tmp_path)
    run = Run()
    try:
        run.tell("steps 20")
        eventually(lambda: len(steps_of(run)) == 20, "the first steps are recorded")
        filling = small_disk / "somebody else's"
        with pytest.raises(OSError), open(filling, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        run.tell("flood 3000")

        def events() -> list[Event]:
            told = run.told()
            return [each for each in told if isinstance(each, Event) and each.kind == "recording"]

        eventually(events, "somebody is told")
        run.tell("steps 5", "bye ok 0")
        run.kill()
        report = run.report()
        assert report["run"]["steps"] == 3025
        (event,) = events()
        assert "No space left" in event.text
        filling.unlink()
        steps = steps_of(run)
        assert steps == list(range(len(steps)))
        assert recorded(run).lost == {}
    finally:
        run.close()


def test_a_run_that_has_ended_is_found_by_its_name_when_its_folder_is_gone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = load(run.folder)
    run.tell("steps 30", "bad", "bye exception 1")
    run.kill()
    run.report()
    monkeypatch.setenv("TUIMON_DIR", str(run.folder.parent / "elsewhere"))
    session = replay_run("fake")
    session.drain()
    frame = session.tick()
    assert (frame.run_id, frame.step) == (info.id, 30)
    assert frame.exit is not None and frame.exit.kind == "exception"
    assert any(each.kind == "non-finite-loss" for each in frame.events)
    found = [each for _, each in recorded_in(info.id).records() if isinstance(each, Goodbye)]
    assert len(found) == 1


def recorded_in(token: str) -> Recording:
    return read_recording(recordings.find_recording(token))
