"""The scribe as a real process beside a real training that ends in every way there is."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuimon.cli import status_of
from tuimon.feed import ledger
from tuimon.feed.codec import decode
from tuimon.feed.history import History, read_history
from tuimon.feed.process import start_ticks
from tuimon.feed.registry import find_run, load
from tuimon.feed.ring import RingReader
from tuimon.model.records import AnyRecord, CommandState, Event, RingLost, Symptom, System

FAKE = Path(__file__).with_name("fake_training.py")
LIMIT_S = 30.0
MAX_RSS_BYTES = 60 << 20


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """The first true answer of `condition`."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if answer := condition():
            return answer
        time.sleep(0.01)
    raise AssertionError(f"not within {LIMIT_S} s: {what}")


class Run:
    """A fake training with its scribe."""

    def __init__(self, report: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE), str(report or "-")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.folder = Path(self.process.stdout.readline().strip())
        self.scribe = int(eventually(self._scribe_pid, "scribe.pid"))

    def tell(self, *lines: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for line in lines:
            print(line, file=self.process.stdin, flush=True)
            assert self.process.stdout.readline() == "ok\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def report(self) -> dict[str, Any]:
        """The report, once it is told to be done and the scribe has left."""
        eventually((self.folder / "report.done").exists, "report.done")
        eventually(lambda: start_ticks(self.scribe) is None, "the scribe leaves")
        document: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return document

    def done(self) -> str:
        return (self.folder / "report.done").read_text()

    def history(self) -> History:
        history = read_history(self.folder / "history.bin")
        assert history is not None
        return history

    def told(self) -> list[AnyRecord]:
        """Everything in the scribe's ring so far."""
        if not (self.folder / "scribe.ring").exists():
            return []
        with contextlib.closing(RingReader(self.folder / "scribe.ring")) as reader:
            return [decode(payload) for payload in reader.read(10_000, 5.0)]

    def saw(self, step: int) -> bool:
        history = read_history(self.folder / "history.bin")
        return history is not None and history.totals.last_step == step

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.scribe, signal.SIGKILL)

    def _scribe_pid(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "scribe.pid").read_text().strip()
        return ""


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start_run(report: Path | None = None) -> Run:
        runs.append(Run(report))
        return runs[-1]

    yield start_run
    for run in runs:
        run.close()


def test_a_normal_end(start: Callable[..., Run], tmp_path: Path):
    target = tmp_path / "out.json"
    run = start(target)
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")
    assert not children.exists() or children.read_text() == ""
    run.tell("steps 20", "bye ok 0")
    report = run.report()
    assert report == json.loads(target.read_text())
    assert run.done() == ""
    assert report["outcome"] == "healthy"
    assert report["run"]["steps"] == 20
    assert report["run"]["exit"] == {
        "kind": "ok",
        "code": 0,
        "detail": "Boom: \N{REPLACEMENT CHARACTER}[1mno",
    }
    assert report["cost"]["overhead_frac"] == pytest.approx(0.01)
    assert report["lost"] == {"records": 0, "reasons": {}}
    info = load(run.folder)
    assert info.exit is not None
    assert (info.exit.kind, info.exit.code, info.last_step) == ("ok", 0, 19)
    mirrored = find_run(info.id)
    assert mirrored.exit == info.exit
    assert (run.folder / "report.json").stat().st_mode & 0o777 == 0o600
    history = run.history()
    assert history.up_to_sequence == 23
    assert history.goodbye is not None
    assert sorted(file.name for file in run.folder.iterdir() if ".tmp" in file.name) == []


def test_a_training_that_is_killed_gets_its_report(start: Callable[..., Run], tmp_path: Path):
    target = tmp_path / "out.json"
    run = start(target)
    run.tell("steps 3", "bad", "ask")
    eventually(lambda: any(isinstance(r, Symptom) for r in run.told()), "a symptom, live")
    eventually(lambda: any(isinstance(r, System) for r in run.told()), "a reading")
    run.kill()
    report = run.report()
    assert report == json.loads(target.read_text())
    assert report["outcome"] == "crashed"
    assert report["run"]["exit"]["kind"] == "killed"
    assert report["run"]["exit"]["code"] is None
    assert "after step 3" in report["run"]["exit"]["detail"]
    assert [(s["kind"], s["step"], s["severity"]) for s in report["symptoms"]] == [
        ("non-finite-loss", 3, "critical"),
        ("non-finite-gradient", 3, "critical"),
    ]
    (ledger,) = report["interventions"]
    assert (ledger["command"], ledger["state"], ledger["by"]) == ("Pause", "expired", "me")
    told = run.told()
    assert [r.state for r in told if isinstance(r, CommandState)] == ["expired"]
    assert [r.kind for r in told if isinstance(r, Event)] == ["killed"]
    rss = max(r.scribe_rss_bytes or 0 for r in told if isinstance(r, System))
    assert 0 < rss <= MAX_RSS_BYTES
    history = run.history()
    assert history.scribe_sequence == len(told)
    assert len(history.symptoms) == 2


def test_what_the_scribe_missed_is_counted(start: Callable[..., Run]):
    run = start()
    run.tell("steps 5")
    eventually(lambda: run.saw(4), "the first steps in the history")
    os.kill(run.scribe, signal.SIGSTOP)
    run.tell("flood 20000", "bye exception 1")
    os.kill(run.scribe, signal.SIGCONT)
    report = run.report()
    assert report["run"]["steps"] == 20005
    assert report["lost"]["reasons"].keys() == {"overrun"}
    history = run.history()
    lost = history.totals.lost["overrun"]
    assert lost == report["lost"]["records"] > 0
    assert history.totals.steps + lost == 20005
    told = [r for r in run.told() if isinstance(r, RingLost)]
    assert sum(record.count for record in told) == lost
    told = [s["kind"] for s in report["symptoms"] if s["severity"] != "info"]
    assert told == ["exception"]


def test_a_ledger_whose_scribe_is_killed_stays_readable_and_says_what_is_missing(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
):
    run = start()
    own, mirror = ledger.places(load(run.folder))
    run.tell("steps 3", "asks 0 2000")
    eventually(
        lambda: all(file.exists() and file.stat().st_size > 5000 for file in (own, mirror)),
        "the ledger is being written",
    )
    os.kill(run.scribe, signal.SIGKILL)
    for file in (own, mirror):
        whole = file.read_bytes().split(b"\n")[:-1]
        assert all(isinstance(json.loads(line), dict) for line in whole)
    run.tell("asks 2000 2010")

    def log() -> tuple[list[str], str]:
        assert status_of(["ctl", load(run.folder).id, "log"]) == 0
        said = capsys.readouterr()
        return said.out.splitlines(), said.err

    entries, problem = log()
    assert len(entries) == 2010 and problem == "", "the ring has them all"
    run.tell("bye ok 0")
    run.process.communicate()
    entries, problem = log()
    assert len(entries) == 2010 and problem.count("\n") == 1
    assert "the end of the run is not in the ledger" in problem
    with mirror.open("ab") as file:
        file.write(b'{"id": "2000", "comm')  # a write that was cut
    run_id = load(run.folder).id
    shutil.rmtree(run.folder)
    assert status_of(["ctl", run_id, "log", "--json"]) == 0
    said = capsys.readouterr()
    kept = len(ledger.kept_of_swept(run_id).states) // 2
    assert 0 < kept <= 2000 and len(json.loads(said.out)) in (kept, kept + 1)
    assert "1 line of the ledger could not be read" in said.err
    assert "the end of the run is not in the ledger" in said.err


def test_a_target_that_cannot_be_written_is_told(start: Callable[..., Run], tmp_path: Path):
    run = start(tmp_path / "nowhere" / "out.json")
    run.tell("steps 1", "bye ok 0")
    assert run.report()["outcome"] == "healthy"
    assert "cannot be written" in run.done()
    assert run.done().count("\n") == 1
    assert [event.kind for event in run.history().events] == ["report"]


def test_a_history_without_room_costs_neither_readings_nor_report(start: Callable[..., Run]):
    run = start()
    eventually((run.folder / "scribe.ring").exists, "the scribe's ring")
    resource.prlimit(run.scribe, resource.RLIMIT_FSIZE, (1500, 1500))
    run.tell("steps 500")

    def kinds() -> list[str]:
        return sorted(each.kind for each in run.told() if isinstance(each, Event))

    eventually(lambda: len(kinds()) >= 2, "events about the history and the recording")
    assert kinds() == ["history", "recording"]
    run.tell("bye stopped 130")
    assert run.report()["run"]["exit"]["kind"] == "stopped"


def test_signals_of_the_terminal_and_a_second_scribe(start: Callable[..., Run]):
    run = start()
    for name in ("SIGHUP", "SIGTERM", "SIGINT"):
        os.kill(run.scribe, getattr(signal, name))
    command = [sys.executable, "-P", "-m", "tuimon.scribe", str(run.folder)]
    assert subprocess.run(command, check=False).returncode == 0
    log = run.folder / "scribe.log"
    eventually(lambda: "not the scribe" in log.read_text(), "the second one leaves")
    assert os.getsid(run.scribe) != os.getsid(0)
    run.tell("steps 2")
    run.process.communicate("exit 0\n")
    report = run.report()
    assert report["run"]["exit"]["kind"] == "killed"
    assert report["run"]["steps"] == 2


def test_a_folder_that_is_no_run_is_an_error_with_a_code(tmp_path: Path):
    command = [sys.executable, "-P", "-m", "tuimon.scribe"]
    nothing = subprocess.run([*command, str(tmp_path)], check=False, capture_output=True, text=True)
    assert (nothing.returncode, nothing.stderr) == (3, f"tuimon: no run in {tmp_path}\n")
    usage = subprocess.run(command, check=False, capture_output=True)
    assert usage.returncode == 2


def test_the_scribe_needs_neither_torch_nor_a_screen():
    code = (
        "import sys, tuimon.scribe.service, tuimon.scribe.__main__\n"
        "bad = {'torch', 'textual', 'rich', 'click'} & set(sys.modules)\n"
        "sys.exit(' '.join(bad) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert (answer.returncode, answer.stderr) == (0, b"")
