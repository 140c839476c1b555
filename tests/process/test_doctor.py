"""`tuimon doctor` on runs and folders made by hand, and on a real terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuimon.cli import status_of
from tuimon.cli.checks.host import check_host
from tuimon.feed import registry
from tuimon.feed.codec import encode
from tuimon.feed.registry import RunInfo
from tuimon.feed.ring import RingWriter
from tuimon.model.records import PAUSED, RUNNING, Facts, LayerTable, Step


@pytest.fixture
def run() -> Iterator[RunInfo]:
    """A run of this very process, ten steps old, with a control socket and without a scribe."""
    info = registry.create_run(name="mine", argv=["mine.py"])
    ring = RingWriter.create(info.ring(), 1 << 20)
    ring.publish(encode(Facts(optimizers=["AdamW"], modules=["Net"], devices=["cpu"])))
    ring.publish(encode(LayerTable(epoch=0, names=["a.weight", "a.bias"])))
    for step in range(10):
        ring.publish(encode(Step(step=step, time_ns=0, step_s=0.1, cost_s=0.001)))
    ring.set_state(RUNNING, 9)
    with contextlib.closing(ring), socket.socket(socket.AF_UNIX) as server:
        server.bind(str(info.control))
        server.listen()
        yield info
        info.ring().unlink(missing_ok=True)


def examined(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = status_of(["doctor", *words, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "tuimon.doctor/1"
    return status, {f"{each['topic']}/{each['name']}": each for each in said["checks"]}


def test_a_run_that_can_be_attached_to(run: RunInfo, capsys: pytest.CaptureFixture[str]) -> None:
    status, checks = examined(capsys, run.id)
    assert status == 0
    assert checks["run/control socket"]["level"] == "ok"
    assert "2 parameters" in checks["run/model"]["said"]
    assert "AdamW" in checks["run/instrumented"]["said"]
    assert checks["run/cost"]["said"].startswith("1% of step time")
    assert checks["run/scribe"]["level"] == "warn"
    assert "mine" in checks["runs/live runs"]["said"]
    assert "publishing a step" in checks["host/cost"]["said"]


def test_what_keeps_one_from_it(run: RunInfo, capsys: pytest.CaptureFixture[str]) -> None:
    run.control.unlink()
    run.path.chmod(0o755)
    status, checks = examined(capsys, run.id)
    assert status == 6
    assert checks["run/folder"]["todo"] == f"chmod 700 {run.folder}"
    assert checks["run/control socket"]["level"] == "warn"
    run.path.chmod(0o700)
    run.ring().unlink()
    _, checks = examined(capsys, run.id)
    assert checks["run/ring"]["level"] == "bad"


def test_a_run_that_waits_or_is_elsewhere(run: RunInfo, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(RingWriter.create(run.ring(), 1 << 20)) as ring:
        ring.set_state(PAUSED, 9)
        _, checks = examined(capsys, run.id)
    assert checks["run/ring"]["todo"] == f"tuimon ctl {run.id} resume"
    registry.mirror_to_state(msgspec.structs.replace(run, host="gpu07"))
    _, checks = examined(capsys)
    assert 'attach --via "ssh gpu07"' in checks["runs/other hosts"]["todo"]


def test_a_run_that_is_not_there_has_its_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    status, checks = examined(capsys, "nobody\x1b[2J")
    assert status == 3
    (name,) = (name for name in checks if name.startswith("run/"))
    assert name.isprintable() and "ls" in checks[name]["todo"]


def test_folders_that_cannot_hold_runs(
    run_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_home.parent.mkdir(exist_ok=True)
    run_home.write_text("a file")
    status, checks = examined(capsys)
    assert status == 6 and checks["host/shared memory"]["level"] == "bad"
    run_home.unlink()
    run_home.mkdir()
    (run_home / "stray").mkdir()
    (run_home / "stray" / "run.json").write_text("{")
    status, checks = examined(capsys)
    assert status == 0 and "damaged" in checks["runs/run folders"]["said"]
    assert list(run_home.iterdir()) == [run_home / "stray"]  # nothing of its own is left


def test_settings_and_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuimon.toml").write_text("[run]\nhold = 3\n")
    monkeypatch.setenv("TUIMON_SCRIBE", "0")
    status, checks = examined(capsys)
    assert status == 6
    assert checks["host/tuimon.toml"]["level"] == "bad"
    assert checks["host/TUIMON_SCRIBE"]["level"] == "warn"


def test_the_version_of_torch_is_known_without_importing_it() -> None:
    (found,) = (each for each in check_host() if each.name == "torch")
    import torch

    assert found.said.startswith(torch.__version__)
    assert ("CPU" in found.said) == (torch.version.cuda is None and torch.version.hip is None)


@pytest.mark.parametrize("answers", [True, False])
def test_the_terminal_is_asked_and_left_as_it_was(answers: bool) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        environ = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "NO_COLOR": "1"}
        environ.pop("TMUX", None)
        program = (
            "import sys, termios\n"
            "from tuimon.cli import status_of\n"
            "before = termios.tcgetattr(0)\n"
            "status_of(['doctor'])\n"
            "print('kept' if termios.tcgetattr(0) == before else 'changed')\n"
        )
        os.execve(sys.executable, [sys.executable, "-c", program], environ)
    said = b""
    while select.select([terminal], [], [], 30.0)[0]:
        try:
            got = os.read(terminal, 4096)
        except OSError:
            break  # how Linux says that the other side is closed
        if not got:
            break
        if answers and b"\x1b[?2026$p" in got:
            os.write(terminal, b"\x1b[?2026;2$y\x1b[?62;4c")
        said += got
    os.waitpid(pid, 0)
    os.close(terminal)
    text = said.decode()
    assert "kept" in text
    line = next(each for each in text.splitlines() if "synchronized output" in each)
    assert ("yes" in line) if answers else ("did not answer" in line)
