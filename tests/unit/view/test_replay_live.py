"""A recording that still grows is followed: its end moves, and what comes is shown as it comes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.view.test_replay import PID, Stopwatch, a_run, settled
from tuimon.feed import registry
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import encode
from tuimon.feed.recorder import Recorder
from tuimon.feed.recording import read_recording
from tuimon.feed.registry import ExitInfo, RankInfo, RunInfo
from tuimon.model.records import AnyRecord, Goodbye, Step
from tuimon.view.frame import GONE, LIVE, Frame
from tuimon.view.replay import END, ReplaySession

RUNNING = RunInfo("abcd1234", "night", "here", 0, "/x", ranks=[RankInfo(0, PID, 5, "77.ring")])
ALL = a_run(1200)


@dataclass
class Live:
    """A recorder at work, and a viewer of what it has written."""

    folder: Path
    recorder: Recorder
    chronicle: Chronicle
    watch: Stopwatch
    taken: int = 0

    def record(self, until_step: int, *, new_segment: bool = False) -> None:
        """Write everything up to the update, as the scribe does in one turn."""
        while self.taken < len(ALL):
            record = ALL[self.taken]
            if getattr(record, "step", -1) > until_step and isinstance(record, Step):
                break
            self.add(record)
        self.recorder.flush()
        if new_segment:
            seen = self.chronicle.snapshot(
                up_to_sequence=self.taken, scribe_sequence=0, written_at_s=0.0
            )
            self.recorder.begin(seen, until_step)

    def add(self, record: AnyRecord) -> None:
        self.taken += 1
        self.chronicle.add(record)
        self.recorder.append(encode(record), self.taken)

    def look(self, session: ReplaySession, passed_s: float = 1.1) -> Frame:
        """The picture after the viewer has had time to look for more, and to arrive."""
        self.watch.now_s += passed_s
        session.tick()
        return settled(session)

    def replay(self, **options: object) -> ReplaySession:
        return ReplaySession(
            read_recording(self.folder),
            path=self.folder,
            stopwatch=self.watch,
            **options,  # type: ignore[arg-type]
        )


@pytest.fixture
def live(tmp_path: Path) -> Live:
    folder = tmp_path / "run"
    recorder = Recorder(folder, RUNNING, PID, max_bytes=64 << 20, keep_free_bytes=0)
    return Live(folder, recorder, Chronicle(RUNNING.id), Stopwatch())


def test_at_the_end_it_goes_on_as_more_is_recorded(live: Live) -> None:
    live.record(99)
    replay = live.replay(at=END)
    frame = settled(replay)
    assert (frame.step, frame.state) == (99, LIVE)
    assert frame.replay is not None and frame.replay.follows and frame.replay.playing
    for until, begins in ((103, True), (105, False), (108, True), (112, False)):
        live.record(until, new_segment=begins)
        frame = live.look(replay)
        assert frame.step == until
        assert frame.replay is not None and frame.replay.last_step == until
    assert frame.lost == {}
    replay.toggle()
    live.record(120)
    frame = live.look(replay)
    assert (frame.step, frame.replay and frame.replay.last_step) == (112, 120)
    assert "newest" not in frame.state_detail, "there is more, and it is not at the end"
    replay.toggle()
    assert live.look(replay, 0.25).step == 114, "ten a second: what was left out is played"
    for _ in range(3):
        live.look(replay, 0.5)
    assert replay.follows and replay.step == 120


def test_the_end_moves_while_the_picture_is_elsewhere(live: Live) -> None:
    live.record(399, new_segment=True)
    live.record(450)
    replay = live.replay(playing=False)
    assert "goes on" in replay.notice() and replay.notice() == ""
    assert replay.last_step == 450, "of the newest record, not of the newest segment"
    replay.go_to(30)
    assert settled(replay).step == 30
    live.record(700, new_segment=True)
    live.record(801)
    frame = live.look(replay)
    assert frame.replay is not None
    assert (frame.step, frame.replay.last_step) == (30, 801)
    for step in (790, 20, 450, 801):
        replay.go_to(step)
        assert settled(replay).step == step
    replay.go_to_event(forward=False)
    assert settled(replay).step == 700, "what was recorded after the beginning is looked through"


def test_thinning_takes_nothing_from_under_a_reader(live: Live) -> None:
    for until in (199, 399, 599):
        live.record(until, new_segment=True)
    live.record(650)
    replay = live.replay(playing=False)
    replay.go_to(100)
    settled(replay)
    live.recorder._max_bytes = live.recorder.size_bytes // 4
    for _ in range(6):
        live.recorder.thin(60.0)
    live.recorder._max_bytes = 64 << 20
    left = read_recording(live.folder)
    assert left.left_out and len(left.segments) < 4
    replay.go_to(640)
    frame = settled(replay)
    assert frame.step == 640
    replay.go_to(END)
    lost = settled(replay).lost
    assert set(lost) <= {"thinned out of the recording"}, lost


def test_its_end_is_seen(live: Live) -> None:
    live.record(99)
    replay = live.replay(at=END)
    settled(replay)
    live.record(101)
    live.add(Goodbye("exception", 1, "ValueError", 101, 1200.0))
    live.recorder.close()
    ended = RunInfo(
        **{name: getattr(RUNNING, name) for name in ("id", "name", "host", "uid", "folder")},
        ranks=RUNNING.ranks,
        exit=ExitInfo("exception", 1, "ValueError"),
        last_step=101,
    )
    live.recorder.describe(ended)
    for _ in range(5):
        frame = live.look(replay)
    assert (frame.state, frame.step) == (GONE, 101)
    assert frame.replay is not None and not frame.replay.follows
    replay.toggle()
    assert (live.look(replay, 0.01).step or 0) < 10, "at an end that stays, it plays from the start"


def test_a_recorder_that_died_long_ago_is_not_followed(live: Live) -> None:
    live.record(99)
    live.recorder.close()
    for file in live.folder.iterdir():
        os.utime(file, (1e9, 1e9))
    replay = live.replay(at=END)
    frame = settled(replay)
    assert frame.replay is not None and not frame.replay.follows
    assert "plays it again" in frame.state_detail


def test_a_run_of_this_host_is_followed_no_longer_than_it_is_there(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.socket, "gethostname", lambda: RUNNING.host)
    live.record(99)
    assert read_recording(live.folder).grows, "its recorder may have more to write"
    written_s = time.time() - 20
    for file in live.folder.iterdir():
        os.utime(file, (written_s, written_s))
    assert not read_recording(live.folder).grows


def test_a_half_written_record_is_not_damage(live: Live) -> None:
    live.record(99)
    whole = live.recorder.path.read_bytes()
    live.recorder.path.write_bytes(whole[:-20])
    replay = live.replay(at=END)
    frame = settled(replay)
    assert frame.lost == {}
    live.recorder.path.write_bytes(whole)
    frame = live.look(replay)
    assert (frame.step, frame.lost) == (99, {})
