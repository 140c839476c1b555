"""A run seen through a relay: real processes, real pipes, and what may happen to them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.process.stand_in import PATIENCE_S, StandIn, until
from tuimon.errors import IncompatibleVersion, NoSuchRun, Refused, UsageError
from tuimon.feed import relay
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import decode
from tuimon.feed.history import write_history
from tuimon.feed.ring import RingReader
from tuimon.model.commands import Pause, SetMaxNorm
from tuimon.model.records import FORMAT_VERSION, Step
from tuimon.view import remote
from tuimon.view.frame import CUT_OFF, GONE, LIVE, OTHER_VERSION, RECONNECTING
from tuimon.view.link import relay_words
from tuimon.view.session import Session, watch_relay

TUIMON = f"{shlex.quote(sys.executable)} -m tuimon"
RELAY = f"{TUIMON} relay"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(remote, "FIRST_RETRY_S", 0.05)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    writer = StandIn()
    yield writer
    writer.end()


@pytest.fixture
def watch() -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def open_one(command: str, *args: str, **options: object) -> Session:
        opened.append(watch_relay(command, *args, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for session in opened:
        session.close()
    gone = time.monotonic() + PATIENCE_S
    while relays() and time.monotonic() < gone:
        time.sleep(0.02)
    assert not relays(), "a relay outlived its viewer"


def relays() -> list[psutil.Process]:
    """Relays below this test."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "relay" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_run_from_first_step_to_goodbye(stand_in, watch):
    session = watch(RELAY, stand_in.run_id, by="me@far")
    stand_in.order("steps 5")
    frame = until(session, lambda frame: frame.step == 4)
    assert (frame.name, frame.pid) == ("stand-in", stand_in.process.pid)
    assert frame.series["loss"].count == 5 and frame.lost == {}
    sent = session.send(SetMaxNorm(1.0))
    frame = until(session, lambda f: bool(f.commands) and f.commands[0].state == "applied")
    assert (frame.commands[0].id, frame.commands[0].by) == (sent.id, "me@far")
    stand_in.order("goodbye ok")
    frame = until(session, lambda frame: frame.state == GONE)
    assert frame.exit.kind == "ok"


def test_words_are_appended_to_a_command_that_leads_there(stand_in, watch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tuimon").write_text(f'#!/bin/sh\nexec {TUIMON} "$@"\n')
    (tmp_path / "bin" / "tuimon").chmod(0o755)
    stand_in.order("steps 1")
    session = watch(f"env PATH={tmp_path}/bin:{os.environ['PATH']}", stand_in.run_id)
    assert until(session, lambda frame: frame.step == 0).state == LIVE


@pytest.mark.parametrize(
    ("command", "token", "words"),
    [
        ("ssh gpu07", "ab12", ["ssh", "gpu07", "tuimon", "relay", "ab12"]),
        ("ssh gpu07", None, ["ssh", "gpu07", "tuimon", "relay"]),
        ("kubectl exec -i pod --", None, ["kubectl", "exec", "-i", "pod", "--", "tuimon", "relay"]),
        ("ssh g /env/bin/tuimon relay", "ab", ["ssh", "g", "/env/bin/tuimon", "relay", "ab"]),
        ("ssh g 'cd x; tuimon relay'", None, ["ssh", "g", "cd x; tuimon relay"]),
    ],
)
def test_the_words_of_a_command(command, token, words):
    assert relay_words(command, token) == words


@pytest.mark.parametrize(
    ("command", "token"), [("", None), ("ssh 'gpu", None), ("ssh gpu", "a; rm"), ("ssh g", "-o x")]
)
def test_words_that_cannot_be_used(command, token):
    with pytest.raises(UsageError):
        relay_words(command, token)


def test_a_banner_is_skipped_and_stderr_is_not_shown(stand_in, watch):
    script = f"echo Welcome; echo 'last login'; echo quota >&2; exec {RELAY} {stand_in.run_id}"
    stand_in.order("steps 2")
    session = watch(f"sh -c {shlex.quote(script)}")
    assert until(session, lambda frame: frame.step == 1).series["loss"].count == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sh -c 'echo \"ssh: no route to host\" >&2; exit 255'", "relay: ssh: no route to host"),
        ("no-such-command-here", "relay: no-such-command-here: No such file"),
        ("sh -c 'exit 3'", "`sh` ended with status 3 and said nothing"),
        ("sh -c 'yes hello | head -c 200000'", "no relay answers"),
        ("sh -c 'printf \"\\033[31mred\" >&2; exit 1'", "relay: "),
    ],
)
def test_a_command_that_does_not_lead_to_a_relay_is_one_line(command, words):
    with pytest.raises(Refused) as caught:
        watch_relay(command, "x")
    assert words in str(caught.value) and str(caught.value).isprintable()


def test_no_such_run_there_is_said_here(stand_in):
    with pytest.raises(NoSuchRun, match="no run 'nobody'"):
        watch_relay(RELAY, "nobody")


def test_another_version_is_said_before_anything_is_read(tmp_path):
    offer = relay.GREETING + relay.packed(relay.Offer(7, FORMAT_VERSION, "9.9"))
    (tmp_path / "offer").write_bytes(offer)
    with pytest.raises(IncompatibleVersion, match=r"tuimon 9\.9 .*same version"):
        watch_relay(f"sh -c 'cat {tmp_path}/offer; cat >/dev/null # tuimon relay'")


def test_a_killed_relay_is_started_again_and_nothing_is_lost(stand_in, watch):
    session = watch(RELAY, stand_in.run_id)
    stand_in.order("steps 100")
    until(session, lambda frame: frame.step == 99)
    for _ in range(2):
        (process,) = relays()
        process.kill()
        stand_in.order("steps 50")
        frame = until(session, lambda frame: frame.state == RECONNECTING)
        assert "relay lost" in frame.state_detail and "trying again" in frame.state_detail
        until(session, lambda frame: frame.state == LIVE)
    frame = until(session, lambda frame: frame.step == 199)
    assert frame.series["loss"].count == 200 and frame.lost == {}
    sent = session.send(Pause())
    until(session, lambda f: [c for c in f.commands if c.id == sent.id and c.state == "applied"])


def test_a_command_while_the_relay_is_lost_is_refused(stand_in, watch, monkeypatch):
    monkeypatch.setattr(remote, "FIRST_RETRY_S", 60.0)
    session = watch(RELAY, stand_in.run_id)
    stand_in.order("steps 1")
    until(session, lambda frame: frame.step == 0)
    relays()[0].kill()
    frame = until(session, lambda frame: frame.state == RECONNECTING)
    assert frame.step == 0 and "in 60 s" in frame.state_detail
    session.send(Pause())
    frame = until(session, lambda f: bool(f.commands) and f.commands[0].state != "sent")
    assert frame.commands[0].state == "refused" and "nothing was sent" in frame.commands[0].reason


def test_a_slow_reader_blocks_the_relay_only(stand_in, watch):
    session = watch(RELAY, stand_in.run_id)
    stand_in.order("steps 10")
    until(session, lambda frame: frame.step == 9)
    (process,) = relays()
    process.send_signal(signal.SIGSTOP)
    stand_in.order("steps 30000")  # several times the ring
    reader = RingReader(stand_in.info.ring(), at_end=True)
    assert reader.status().dropped == 0
    reader.close()
    process.send_signal(signal.SIGCONT)
    frame = until(session, lambda frame: frame.step == 30_009)
    assert frame.lost["overrun"] + frame.series["loss"].count == 30_010
    process.kill()
    stand_in.order("steps 1")
    frame = until(session, lambda frame: frame.step == 30_010)
    assert frame.lost["overrun"] + frame.series["loss"].count == 30_011, "losses were forgotten"


def test_a_viewer_that_stops_reading_is_told_what_it_missed(stand_in, watch, monkeypatch):
    monkeypatch.setattr(remote, "MAX_WAITING", 2)
    session = watch(RELAY, stand_in.run_id)
    stand_in.order("steps 10")
    until(session, lambda frame: frame.step == 9)
    stand_in.order("steps 60000")  # inbox, pipe and ring together hold less
    frame = until(session, lambda frame: frame.step == 60_009)
    assert frame.lost["overrun"] > 0
    assert frame.lost["overrun"] + frame.series["loss"].count == 60_010


def test_what_was_overrun_while_the_relay_was_lost_is_counted(stand_in, watch):
    session = watch(RELAY, stand_in.run_id)
    stand_in.order("steps 10")
    until(session, lambda frame: frame.step == 9)
    (process,) = relays()
    process.send_signal(signal.SIGSTOP)
    stand_in.order("steps 30000")
    process.kill()
    frame = until(session, lambda frame: frame.step == 30_009)
    assert frame.lost["overrun"] + frame.series["loss"].count == 30_010


def test_garbage_in_the_stream_is_a_lost_relay_not_a_picture(stand_in, watch, tmp_path):
    """The first time through the stream is cut and followed by garbage."""
    once = tmp_path / "once"
    script = (
        f"if [ -e {once} ]; then exec {RELAY} {stand_in.run_id}; fi; touch {once}; "
        f"{RELAY} {stand_in.run_id} | (dd bs=1 count=3000 2>/dev/null; cat /dev/zero)"
    )
    stand_in.order("steps 200")
    session = watch(f"sh -c {shlex.quote(script)}")
    frame = until(session, lambda frame: frame.state == RECONNECTING)
    assert "damaged" in frame.state_detail
    frame = until(session, lambda frame: frame.step == 199)
    assert frame.series["loss"].count == 200


def test_two_viewers_have_a_relay_each(stand_in, watch):
    first, second = (watch(RELAY, stand_in.run_id) for _ in range(2))
    stand_in.order("steps 3")
    for session in (first, second):
        assert until(session, lambda frame: frame.step == 2).series["loss"].count == 3
    first.send(Pause())
    frame = until(second, lambda f: bool(f.commands) and f.commands[0].state == "applied")
    assert frame.commands[0].command == "Pause"
    first.close()
    stand_in.order("steps 1")
    until(second, lambda frame: frame.step == 3)


def test_a_read_only_viewer_cannot_send_and_its_relay_would_not_pass_it_on(stand_in, watch):
    session = watch(RELAY, stand_in.run_id, readonly=True)
    until(session, lambda frame: frame.state == LIVE)
    with pytest.raises(Refused, match="read-only"):
        session.send(Pause())
    source = remote.open_relay(RELAY, stand_in.run_id, readonly=True)
    try:
        request = relay.Request("a" * 32, "me", Pause())
        source._link.write(relay.Ask(request))
        states = []
        deadline = time.monotonic() + PATIENCE_S
        while not states:
            states = [r for r in source.poll(100, 0.01) if hasattr(r, "reason")]
            assert time.monotonic() < deadline
        assert states[0].state == "refused" and "read-only" in states[0].reason
    finally:
        source.close()


def test_a_late_viewer_begins_with_the_history(stand_in, watch):
    chronicle = Chronicle(stand_in.run_id)
    reader = RingReader(stand_in.info.ring(), from_sequence=0)
    for _ in range(4):
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
    session = watch(RELAY, stand_in.run_id)
    frame = until(session, lambda frame: frame.step == 4_099)
    assert frame.series["loss"].count == 4_100 and frame.lost == {}


def test_the_end_of_a_killed_training_and_its_deleted_folder_come_through(stand_in, watch):
    session = watch(RELAY, stand_in.run_id)
    stand_in.order("steps 3")
    until(session, lambda frame: frame.step == 2)
    for file in stand_in.info.path.iterdir():
        file.unlink()
    frame = until(session, lambda frame: "deleted" in frame.state_detail)
    assert frame.state == CUT_OFF
    stand_in.kill()
    frame = until(session, lambda frame: frame.state == GONE)
    assert frame.step == 2 and "deleted" in frame.state_detail


def test_a_run_that_was_swept_while_the_relay_was_lost_is_no_endless_retry(stand_in, watch):
    session = watch(RELAY, stand_in.run_id)
    stand_in.order("steps 3")
    until(session, lambda frame: frame.step == 2)
    for folder in (stand_in.info.path, Path(os.environ["XDG_STATE_HOME"]) / "tuimon" / "runs"):
        for file in folder.iterdir():
            file.unlink()
    relays()[0].kill()
    frame = until(session, lambda frame: frame.state == OTHER_VERSION)
    assert frame.step == 2 and "no run" in frame.state_detail


def test_the_commands_of_the_shell(stand_in, tmp_path):
    def tuimon(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tuimon", *words], capture_output=True, text=True, timeout=60
        )

    stand_in.order("steps 3")
    done = tuimon("attach", "--once", "--via", RELAY, stand_in.run_id)
    assert done.returncode == 0 and "stand-in" in done.stdout and done.stderr == ""
    done = tuimon("ctl", "--via", RELAY, stand_in.run_id, "max-norm", "2", "--json")
    assert done.returncode == 0 and '"applied"' in done.stdout
    done = tuimon("ctl", "--via", RELAY, stand_in.run_id, "log")
    assert done.returncode == 0 and "applied" in done.stdout
    done = tuimon("attach", "--once", "--via", "sh -c 'echo ssh: nope >&2'")
    assert (done.returncode, done.stderr) == (4, "tuimon: relay: ssh: nope\n")
    done = tuimon("ctl", "--via", RELAY, "nobody", "pause")
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    garbage = subprocess.run(
        [sys.executable, "-m", "tuimon", "relay", stand_in.run_id],
        input=b"GET / HTTP/1.1\r\n\r\n",
        capture_output=True,
        timeout=60,
    )
    assert garbage.returncode == 4 and garbage.stderr.count(b"\n") == 1


def test_every_record_comes_once_across_lost_relays(stand_in):
    source = remote.open_relay(RELAY, stand_in.run_id, readonly=True)
    seen: list[int] = []

    def read_until(count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(seen) < count:
            seen.extend(r.step for r in source.poll(100, 0.01) if type(r) is Step)
            assert time.monotonic() < deadline, f"{len(seen)} of {count}"

    try:
        for total in (100, 200, 300):
            stand_in.order("steps 100")
            read_until(total)
            relays()[0].kill()
        stand_in.order("steps 1")
        read_until(301)
        assert seen == list(range(301))
    finally:
        source.close()
