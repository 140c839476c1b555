"""Another user of the machine can neither read a run nor reach into it, and is told so."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.security.conftest import NOBODY
from tuimon.errors import Refused, TuimonError
from tuimon.feed import channel, codec, history, ledger, paths, registry
from tuimon.feed.channel import ControlServer
from tuimon.feed.ring import RingWriter
from tuimon.model.commands import Pause, Request
from tuimon.model.records import CommandState, Event
from tuimon.scribe import ending

As = Callable[[Callable[[], Any]], Any]


class Run:
    """A run with every file that it may have, in a folder that others may enter."""

    def __init__(self, common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TUIMON_DIR", str(common / "runs"))
        monkeypatch.setenv("XDG_STATE_HOME", str(common / "state"))
        (common / "runs").mkdir(mode=0o755)
        old = os.umask(0)  # as careless as can be
        try:
            self.info = registry.create_run(name="mine", argv=["x"])
            self.asked: list[str] = []
            self.server = ControlServer(self.info.control, self.answer)
            self.server.start()
            ring = RingWriter.create(self.info.ring(), 1 << 16)
            ring.publish(codec.encode(Event(1, 1.0, "info", "x", "secret")))
            ring.close()
            history.write_history(self.info.path / "history.bin", history.History("a", 0))
            written = ledger.LedgerFiles(self.info)
            written.add(CommandState("a", "Pause", "applied"))
            written.close()
            ending.write_to(self.info.path / ending.REPORT, {"a": 1}, 0o600, own=True)
            ending.tell_done(self.info.path, [])
        finally:
            os.umask(old)

    def answer(self, request: Request) -> CommandState:
        self.asked.append(request.by)
        return CommandState(request.id, request.command.title, "accepted")

    def files(self) -> list[str]:
        return [str(path) for path in self.info.path.iterdir() if path.is_file()]


@pytest.fixture
def run(common: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Run(common, monkeypatch)
    yield made
    made.server.close()


def refusals(run: Run, names: list[str]) -> dict[str, str]:
    """What another user meets, by what was tried."""
    told: dict[str, str] = {}

    def attempt(what: str, action: Callable[[], Any]) -> None:
        try:
            told[what] = f"worked: {action()!r}"[:100]
        except (OSError, TuimonError) as error:
            told[what] = type(error).__name__

    attempt("list", lambda: os.listdir(run.info.folder))
    attempt("enter", lambda: os.chdir(run.info.folder))
    attempt("put", lambda: os.open(f"{run.info.folder}/planted", os.O_CREAT | os.O_WRONLY))
    for name in names:
        attempt(f"read {name}", lambda name=name: Path(name).read_bytes())
        attempt(f"write {name}", lambda name=name: os.open(name, os.O_WRONLY))
    attempt("connect", lambda: socket.socket(socket.AF_UNIX).connect(str(run.info.control)))
    attempt("ask", lambda: channel.ask(run.info.control, Request("a", "thief", Pause())))
    attempt("load", lambda: registry.load(run.info.path))
    attempt("find", lambda: registry.find_run(run.info.folder))
    return told


def test_nothing_can_be_read_written_or_asked(run: Run, as_another_user: As) -> None:
    files = run.files()
    names = {Path(file).name for file in files}
    assert names >= {"run.json", "history.bin", "ledger.jsonl", "report.json", "report.done"}
    told = as_another_user(lambda: refusals(run, files))
    assert len(told) >= 7 + 2 * len(files)
    assert {what for what, how in told.items() if how.startswith("worked")} == set()
    assert told["load"] == told["find"] == "Refused"
    mirror = paths.state_folder() / "runs"
    kept = [str(path) for path in mirror.iterdir()]
    assert len(kept) == 2, "the run and its ledger"
    told = as_another_user(lambda: refusals(run, kept))
    assert {what for what, how in told.items() if how.startswith("worked")} == set()
    assert run.asked == []


def test_not_even_where_the_folder_has_been_opened_by_mistake(
    run: Run, as_another_user: As
) -> None:
    run.info.path.chmod(0o755)
    told = as_another_user(lambda: refusals(run, run.files()))
    worked = {what for what, how in told.items() if how.startswith("worked")}
    assert worked == {"list", "enter"}
    # And where the socket's own mode has been opened too: whoever it is, is asked of the kernel.
    run.info.control.chmod(0o777)
    told = as_another_user(lambda: refusals(run, []))
    assert told["connect"].startswith("worked") and told["ask"] == "Refused"
    assert run.asked == []
    assert channel.ask(run.info.control, Request("b", "me", Pause())).state == "accepted"


def test_a_run_of_another_user_is_not_looked_at(run: Run, as_another_user: As) -> None:
    assert os.getuid() != NOBODY
    os.chown(run.info.path, NOBODY, NOBODY)
    with pytest.raises(Refused, match=f"belongs to user {NOBODY}"):
        registry.load(run.info.path)
    with pytest.raises(Refused):
        registry.find_run(run.info.folder)
