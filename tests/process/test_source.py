"""A viewer without a screen on a real ring written by another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.process.stand_in import PATIENCE_S, StandIn, until
from tuimon.cli import status_of
from tuimon.errors import NoSuchRun, Refused
from tuimon.feed import jobs, registry
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import decode
from tuimon.feed.history import write_history
from tuimon.feed.process import start_ticks
from tuimon.feed.registry import ExitInfo, RankInfo
from tuimon.feed.ring import RingReader
from tuimon.model.commands import Pause, SetMaxNorm
from tuimon.view.frame import (
    GONE,
    HELD,
    LIVE,
    OTHER_VERSION,
    PAUSED,
    WAITING,
)
from tuimon.view.session import Session, watch_run
from tuimon.view.source import CommandingRingSource, RingSource, open_source


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    writer = StandIn()
    yield writer
    writer.end()


@pytest.fixture
def session(stand_in: StandIn) -> Iterator[Session]:
    session = watch_run(stand_in.run_id, by="tester@here (test)")
    yield session
    session.close()


@pytest.mark.parametrize("kind", ["launcher", "parent"])
def test_who_spawned_it_was_killed(kind, stand_in, session, capsys):
    """The training goes on, and nobody waits for it or ends it any more: told within seconds."""
    spawner = subprocess.Popen(["sleep", "60"])
    them = RankInfo(0, spawner.pid, start_ticks(spawner.pid), "none.ring")
    registry.save(structs.replace(registry.load(stand_in.info.path), **{kind: them}))
    stand_in.order("steps 5")
    frame = until(session, lambda frame: frame.step == 4)
    assert frame.state_detail == ""
    spawner.kill()
    spawner.wait()
    killed_s = time.monotonic()
    frame = until(session, lambda frame: frame.state_detail != "")
    assert time.monotonic() - killed_s < 5, "and not whenever"
    assert frame.state == LIVE
    assert f"pid {spawner.pid}, which spawned it, is gone" in frame.state_detail
    assert "stop" in frame.state_detail
    stand_in.order("word paused")
    frame = until(session, lambda frame: frame.state == PAUSED)
    assert f"pid {spawner.pid}, which spawned it, is gone" in frame.state_detail
    capsys.readouterr()
    assert status_of(["ls"]) == 0
    assert f"pid {spawner.pid}, which spawned it, is gone" in capsys.readouterr().out
    assert status_of(["doctor", stand_in.run_id, "--json"]) == 0
    assert f"(pid {spawner.pid}) is gone" in capsys.readouterr().out


def test_a_child_that_is_a_run_of_its_own_knows_who_spawned_it(stand_in):
    place = jobs.Place(launcher=stand_in.info.folder)
    child, _, is_new = jobs.enter(place, name="child", argv=["child.py"])
    assert is_new and child.parent == stand_in.info.ranks[0] and child.launcher is None


def test_a_run_from_first_step_to_goodbye(stand_in, session):
    stand_in.order("steps 5")
    frame = until(session, lambda frame: frame.step == 4)
    assert (frame.name, frame.pid, frame.total_steps) == ("stand-in", stand_in.process.pid, 1000)
    assert frame.series["loss"].count == 5 and frame.heat.last_step == 4
    assert until(session, lambda frame: frame.state == LIVE).lost == {}
    stand_in.order("word paused")
    assert "resume" in until(session, lambda frame: frame.state == PAUSED).state_detail
    stand_in.order("word held")
    until(session, lambda frame: frame.state == HELD)
    stand_in.order("word running")
    stand_in.order("steps 1")
    until(session, lambda frame: frame.state == LIVE and frame.step == 5)
    stand_in.order("goodbye ok")
    frame = until(session, lambda frame: frame.state == GONE)
    assert frame.exit.kind == "ok" and frame.exit.code == 0
    assert "normally" in frame.state_detail


def test_sigkill_leaves_the_picture_and_a_reason(stand_in, session):
    stand_in.order("steps 50")
    stand_in.kill()
    frame = until(session, lambda frame: frame.state == GONE)
    assert frame.step == 49 and frame.series["loss"].count == 50
    assert frame.exit.kind == "killed" and "killed" in frame.state_detail
    registry.record_exit(stand_in.info, ExitInfo("killed", -9, "out of memory"), 49)
    frame = until(session, lambda frame: frame.exit.code == -9)
    assert "out of memory" in frame.state_detail
    with pytest.raises(NoSuchRun, match="ended"):
        session.send(Pause())


def test_a_lagging_viewer_counts_what_it_missed(stand_in, session):
    stand_in.order("steps 10")
    until(session, lambda frame: frame.step == 9)
    for _ in range(3):
        stand_in.order("steps 10000")
    frame = until(session, lambda frame: frame.step == 30_009)
    assert frame.lost["overrun"] + frame.series["loss"].count == 30_010
    assert frame.lost["overrun"] > 0


def test_a_stopped_viewer_never_delays_the_training(stand_in):
    code = (
        "import sys, time\nfrom tuimon.view.session import watch_run\n"
        "session = watch_run(sys.argv[1], readonly=True)\n"
        "while session.tick().step is None: time.sleep(0.01)\n"
        "print('reading', flush=True)\n"
        "while True: session.tick(); time.sleep(0.01)\n"
    )
    stand_in.order("steps 1")
    viewer = subprocess.Popen(
        [sys.executable, "-c", code, stand_in.run_id], stdout=subprocess.PIPE, text=True
    )
    try:
        assert viewer.stdout is not None and viewer.stdout.readline() == "reading\n"
        viewer.send_signal(signal.SIGSTOP)
        stand_in.order("steps 30000")  # several times the ring, with nobody reading
        reader = RingReader(stand_in.info.ring(), at_end=True)
        assert reader.status().step == 30_000 and reader.status().dropped == 0
        reader.close()
    finally:
        viewer.kill()
        viewer.wait()
        if viewer.stdout is not None:
            viewer.stdout.close()
    stand_in.order("steps 1")


def test_a_command_is_followed_to_its_end(stand_in, session):
    stand_in.order("steps 1")
    until(session, lambda frame: frame.step == 0)
    sent = session.send(SetMaxNorm(1.0))
    assert sent.state == "sent" and sent.by == "tester@here (test)"
    frame = until(session, lambda f: bool(f.commands) and f.commands[0].state == "applied")
    assert (frame.commands[0].id, frame.commands[0].by) == (sent.id, sent.by)
    with pytest.raises(Refused, match="above 0"):
        session.send(SetMaxNorm(-1.0))


def test_a_training_that_does_not_answer_does_not_stop_the_view(stand_in, session):
    stand_in.order("steps 1")
    until(session, lambda frame: frame.step == 0)
    stand_in.process.send_signal(signal.SIGSTOP)
    session.send(Pause())
    frame = until(session, lambda frame: bool(frame.commands))
    assert frame.commands[0].state == "sent"
    session.tick()
    stand_in.process.send_signal(signal.SIGCONT)
    until(session, lambda frame: frame.commands[0].state == "applied")


def test_a_command_to_nobody_is_refused(stand_in):
    source = open_source(stand_in.info, by="me")
    assert isinstance(source, CommandingRingSource)
    source.open()
    stand_in.kill()
    source.send(Pause())
    states = []
    deadline = time.monotonic() + PATIENCE_S
    while "refused" not in states:
        states += [record.state for record in source.poll(10, 0.01) if hasattr(record, "reason")]
        assert time.monotonic() < deadline
    assert states == ["sent", "refused"]
    source.close()


def test_a_read_only_source_has_no_way_to_send(stand_in):
    source = open_source(stand_in.info, readonly=True)
    assert type(source) is RingSource and not hasattr(source, "send")
    session = watch_run(stand_in.run_id, readonly=True)
    session.tick()
    with pytest.raises(Refused, match="read-only"):
        session.send(Pause())
    session.close()


def test_another_format_is_a_state(stand_in, session):
    ring = stand_in.info.ring()
    with ring.open("r+b") as file:
        file.seek(8)
        file.write(b"\x63\0\0\0")
    frame = until(session, lambda frame: frame.state == OTHER_VERSION)
    assert "format 99" in frame.state_detail


def test_a_replaced_ring_is_opened_again(stand_in, session):
    stand_in.order("steps 3")
    until(session, lambda frame: frame.step == 2)
    stand_in.order("replace")
    stand_in.order("steps 2")
    frame = until(session, lambda frame: frame.step == 4)
    assert frame.series["loss"].count == 5 and frame.lost == {}


def test_a_record_that_does_not_decode_is_counted(stand_in, session):
    stand_in.order("garbage")
    stand_in.order("steps 1")
    assert until(session, lambda frame: frame.step == 0).lost == {"undecodable": 1}


def test_a_late_viewer_begins_with_the_history(stand_in):
    chronicle = Chronicle(stand_in.run_id)
    reader = RingReader(stand_in.info.ring(), from_sequence=0)
    for _ in range(10):
        stand_in.order("steps 1000")
        while payloads := reader.read(5000, 1.0):
            for payload in payloads:
                chronicle.add(decode(payload))
    history = chronicle.snapshot(
        up_to_sequence=reader.last_sequence, scribe_sequence=0, written_at_s=0.0
    )
    reader.close()
    write_history(stand_in.info.path / "history.bin", history)
    stand_in.order("steps 100")
    session = watch_run(stand_in.run_id)
    frame = until(session, lambda frame: frame.step == 10_099)
    assert frame.series["loss"].count == 10_100 and frame.lost == {}
    assert frame.history_first_step == 0 and frame.heat.first_step == 0
    session.close()


def test_without_a_run_the_view_waits_and_attaches_by_itself(tmp_path):
    session = watch_run()
    frame = session.tick()
    assert frame.state == WAITING and "tuimon run" in frame.state_detail
    writer = StandIn()
    try:
        writer.order("steps 2")
        assert until(session, lambda frame: frame.step == 1).run_id == writer.run_id
    finally:
        session.close()
        writer.end()


def test_a_deleted_folder_of_a_dead_run_is_explained(stand_in, session):
    info = stand_in.info
    stand_in.kill()
    os.unlink(info.ring())
    frame = until(session, lambda frame: frame.state == GONE)
    assert "deleted" in frame.state_detail
