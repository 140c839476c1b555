"""A link in the place of a file of ours is refused or replaced; what it leads to stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.security.conftest import NOBODY
from tuimon.cli import status_of
from tuimon.errors import EXIT_CANNOT_START, NoRoom, NoSuchRun, Refused
from tuimon.feed import channel, history, ledger, paths, private, registry
from tuimon.feed.registry import RunInfo
from tuimon.feed.ring import RingReader, RingWriter
from tuimon.model.commands import Dump, Pause, Request, SaveCheckpoint
from tuimon.model.records import CommandState
from tuimon.scribe import ending
from tuimon.train.control.checkpoint import write_checkpoint
from tuimon.train.control.controls import _folder_problem
from tuimon.train.control.dump import write_dump
from tuimon.train.launch import attendant


@pytest.fixture
def run() -> RunInfo:
    return registry.create_run(name="planted", argv=["x"])


def accept(request: Request) -> CommandState:
    return CommandState(request.id, request.command.title, "accepted")


def test_in_place_of_the_folders(
    tmp_path: Path, run_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "root").symlink_to(elsewhere)
    with pytest.raises(NoRoom, match="is a link"):
        paths.secure_folder(tmp_path / "root")
    run_home.mkdir()
    (run_home / "cafecafe").symlink_to(elsewhere)
    monkeypatch.setattr(os, "urandom", lambda _: bytes.fromhex("cafecafe"))
    with pytest.raises(NoRoom, match="is a link"):
        registry.create_run(name="x", argv=["x"])
    assert list(elsewhere.iterdir()) == []


def test_in_place_of_the_run_file_and_its_mirror(run: RunInfo, victim: Path) -> None:
    mirror = paths.state_folder() / "runs" / f"{run.host}-{run.id}.json"
    for place in (run.path / "run.json", mirror):
        place.unlink()
        place.symlink_to(victim)
        place.with_name(f".{place.name}.{os.getpid()}").symlink_to(victim)
    registry.save(run)
    assert not (run.path / "run.json").is_symlink() and not mirror.is_symlink()
    assert registry.load(run.path).id == run.id


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_what_is_read_keeps_nobody_waiting(run: RunInfo) -> None:
    for name in ("run.json", "history.bin", f"{os.getpid()}.ring", ledger.FILE):
        (run.path / name).unlink(missing_ok=True)
        os.mkfifo(run.path / name)
    with pytest.raises(NoSuchRun):
        registry.load(run.path)
    assert history.read_history(run.path / "history.bin") is None
    with pytest.raises(NoSuchRun):
        RingReader(run.ring())
    assert ledger.kept_of(run) is None
    assert [info.id for info in registry.list_runs()] == [run.id], "the mirror knows it still"


def test_in_place_of_the_ring(run: RunInfo, victim: Path) -> None:
    run.ring().symlink_to(victim)
    run.ring().with_suffix(".new").symlink_to(victim)
    run.ring().with_name(f".{run.ring().name}.{os.getpid()}").symlink_to(victim)
    with pytest.raises(NoSuchRun):
        RingReader(run.ring())
    RingWriter.create(run.ring(), 1 << 16).close()
    assert not run.ring().is_symlink()
    assert RingReader(run.ring()).status().writer_pid == os.getpid()


def test_in_place_of_the_socket(run: RunInfo, tmp_path: Path, victim: Path) -> None:
    other = channel.ControlServer(tmp_path / "other.sock", accept)
    other.start()
    try:
        run.control.symlink_to(tmp_path / "other.sock")
        with pytest.raises(Refused, match="link"):
            channel.ask(run.control, Request("a", "me", Pause()))
        run.control.unlink()
        run.control.symlink_to(victim)
        server = channel.ControlServer(run.control, accept)
        try:
            server.start()
        except OSError:
            assert run.control.is_symlink()
        else:
            assert not run.control.is_symlink()
            server.close()
    finally:
        other.close()


def test_in_place_of_history_and_ledger(run: RunInfo, victim: Path) -> None:
    place = run.path / "history.bin"
    place.symlink_to(victim)
    place.with_name(f".history.bin.{os.getpid()}").symlink_to(victim)
    place.with_name(f"history.bin.{os.getpid()}.tmp").symlink_to(victim)
    history.write_history(place, history.History(run.id, 0))
    found = history.read_history(place)
    assert found is not None and found.run_id == run.id

    for place in ledger.places(run):
        place.symlink_to(victim)
    written = ledger.LedgerFiles(run)
    written.add(CommandState("a", "Pause", "accepted"))
    written.close()
    assert "cannot be written" in written.problem
    ledger.places(run)[0].unlink()
    os.link(victim, ledger.places(run)[0])  # a second name instead of a link
    written = ledger.LedgerFiles(run)
    written.add(CommandState("a", "Pause", "accepted"))
    written.close()
    assert "cannot be written" in written.problem


def test_in_place_of_the_report_and_its_mark(run: RunInfo, victim: Path) -> None:
    (run.path / ending.REPORT).symlink_to(victim)
    (run.path / ending.DONE).symlink_to(victim)
    (run.path / f".{ending.DONE}.{os.getpid()}").symlink_to(victim)
    report = run.path / ending.REPORT
    assert ending.write_to(report, {"schema": "x"}, 0o600, own=True) == ""
    ending.tell_done(run.path, ["it went wrong"])
    assert "schema" in (run.path / ending.REPORT).read_text()
    assert "it went wrong" in (run.path / ending.DONE).read_text()
    assert not (run.path / ending.REPORT).is_symlink()


def test_in_place_of_the_logs(run: RunInfo, victim: Path) -> None:
    (run.path / "scribe.log").symlink_to(victim)
    assert attendant.start_scribe(run) != ""
    with pytest.raises(OSError):
        private.open_own(run.path / "scribe.log", os.O_WRONLY)


class Spot:
    """Something to write, and a folder to write it to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = nn.Linear(1, 1)

    def dump(self) -> Any:
        return write_dump(str(self.folder), list(self.model.named_parameters()), step=3)

    def checkpoint(self) -> Any:
        return write_checkpoint(str(self.folder), [("", self.model)], [], [], step=3)


def test_in_place_of_what_a_dump_or_a_checkpoint_writes(tmp_path: Path, victim: Path) -> None:
    spot = Spot(tmp_path / "out")
    spot.folder.mkdir()
    taken = tmp_path / "taken"
    taken.mkdir()
    (spot.folder / "step-000003").symlink_to(taken)
    (spot.folder / "step-000003-1").symlink_to(tmp_path / "nowhere")
    (spot.folder / "checkpoint-000003.pt").symlink_to(victim)
    (spot.folder / "checkpoint-000003-1.pt").symlink_to(tmp_path / "nowhere")
    dumped, saved = spot.dump(), spot.checkpoint()
    assert dumped.folder == spot.folder / "step-000003-2", dumped.reason
    assert saved.folder == spot.folder / "checkpoint-000003-2.pt", saved.reason
    assert list(taken.iterdir()) == [] and not (tmp_path / "nowhere").exists()


def test_ones_own_links_are_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "mine").symlink_to(real)
    spot = Spot(tmp_path / "mine")
    assert spot.dump().folder is not None and spot.checkpoint().folder is not None
    (tmp_path / "report.json").symlink_to(real / "report.json")
    private.put(tmp_path / "report.json", b"{}")
    assert (real / "report.json").is_file() and (tmp_path / "report.json").is_symlink()
    assert sorted(path.name for path in real.iterdir()) == [
        "checkpoint-000003.pt", "report.json", "step-000003",
    ]  # fmt: skip


@pytest.mark.usefixtures("as_another_user")
def test_a_link_that_somebody_else_has_put_there_is_not(
    tmp_path: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = tmp_path / "real"
    real.mkdir()
    for name, target in (("theirs", real), ("theirs.json", victim)):
        (tmp_path / name).symlink_to(target)
        os.lchown(tmp_path / name, NOBODY, NOBODY)
    spot = Spot(tmp_path / "theirs" / "deeper")
    assert "somebody else" in spot.dump().reason and "somebody else" in spot.checkpoint().reason
    for command in (Dump(["a"], str(spot.folder)), SaveCheckpoint(str(spot.folder))):
        assert "somebody else" in _folder_problem(command.directory)
    for place in (tmp_path / "theirs" / "r.json", tmp_path / "theirs.json"):
        words = ["run", "--report", str(place), str(tmp_path / "none.py")]
        assert status_of(words) == EXIT_CANNOT_START
        assert "somebody else" in capsys.readouterr().err
        assert "somebody else" in ending.write_to(place, {}, 0o600, own=False)
    assert list(real.iterdir()) == []


def test_a_forged_run_does_not_have_a_folder_of_the_persons_deleted(
    tmp_path: Path, run: RunInfo, forge: Callable[[RunInfo, Path], None]
) -> None:
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "thesis.tex").write_text("years of work")
    forge(run, papers)
    registry.sweep(1e12)
    assert (papers / "thesis.tex").exists()


@pytest.fixture
def forge() -> Callable[[RunInfo, Path], None]:
    def write(run: RunInfo, folder: Path) -> None:
        import msgspec

        forged = msgspec.structs.replace(run, id=folder.name, folder=str(folder), ranks=[])
        mirror = paths.state_folder() / "runs" / f"{run.host}-{folder.name}.json"
        mirror.write_bytes(msgspec.json.encode(forged))

    return write
