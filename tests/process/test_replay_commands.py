"""The command line on recordings: one frame, the list, and what a run that is gone leads to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.view.test_replay import INFO, a_run, write_recording
from tuimon.cli import status_of
from tuimon.errors import EXIT_NO_RUN, EXIT_OK, EXIT_USAGE, EXIT_VERSION
from tuimon.feed import recordings, registry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = recordings.folder_of(INFO)
    write_recording(folder, a_run(450))
    return folder


def test_one_frame_of_its_end_or_of_a_step(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["replay", INFO.name, "--once"]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "EXITED 1" in shown and "step 449" in shown
    assert status_of(["replay", str(folder), "--once", "--at", "123", "--glyphs", "ascii"]) == 0
    shown = capsys.readouterr().out
    assert "step 123" in shown and "REPLAY" in shown
    assert shown.isascii()
    picture = folder.parent / "a.svg"
    assert status_of(["replay", INFO.id, "--once", "--svg", str(picture)]) == EXIT_OK
    assert picture.read_text().startswith("<svg")
    assert status_of(["replay", INFO.id, "--svg", str(picture)]) == EXIT_USAGE
    capsys.readouterr()
    file = sorted(folder.glob("*.tuimon"))[-1]
    moved = file.rename(folder.parent / "sent.tuimon")
    assert status_of(["replay", str(moved), "--once", "--with", str(moved)]) == EXIT_OK
    assert "step 449" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("screen", "words"),
    [("charts", "╭─ lr"), ("3", "╭─ layers"), ("EVENTS", "╭─ events"), ("9", "╭─ output")],
)
def test_one_frame_of_any_screen(
    folder: Path, screen: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    once = ["replay", INFO.name, "--once", "--screen", screen]
    assert status_of(once) == EXIT_OK
    assert words in capsys.readouterr().out
    picture = folder.parent / "a.svg"
    assert status_of([*once, "--svg", str(picture)]) == EXIT_OK
    assert f">{words.split()[-1]}<" in picture.read_text()


def test_a_screen_goes_with_one_frame(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("attach", "replay"):
        assert status_of([command, INFO.name, "--screen", "charts"]) == EXIT_USAGE
        assert status_of([command, INFO.name, "--once", "--screen", "10"]) == EXIT_USAGE
        told = capsys.readouterr().err.splitlines()
        assert "--once" in told[0] and "overview, charts, layers" in told[1]


def test_what_cannot_be_played_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"something else entirely, and long enough")
    void = tmp_path / "void.tuimon"
    void.write_bytes(b"TUIMONRCab")
    for arguments, status in (
        (["replay"], EXIT_USAGE),  # without a terminal
        (["replay", "nothing"], EXIT_NO_RUN),
        (["replay", INFO.name, "--with", "nothing"], EXIT_NO_RUN),
        (["replay", str(void)], EXIT_NO_RUN),
        (["replay", str(void), "--once"], EXIT_NO_RUN),
        (["export", str(void), "--csv", str(tmp_path / "csv")], EXIT_NO_RUN),
        (["report", str(void), "-o", str(tmp_path / "a.html")], EXIT_NO_RUN),
        (["attach", "nothing"], EXIT_NO_RUN),
        (["attach"], EXIT_USAGE),
        (["replay", "nothing", "--once"], EXIT_NO_RUN),
        (["replay", str(other), "--once"], EXIT_VERSION),
        (["replay", str(tmp_path / "none.tuimon"), "--once"], EXIT_NO_RUN),
        (["replay", "--once", "--at", "soon"], EXIT_USAGE),
        (["replay", "--once", "--with", "nothing"], EXIT_NO_RUN),
    ):
        assert status_of(arguments) == status, arguments
        said = capsys.readouterr().err
        assert said.startswith("tuimon: ") and said.count("\n") == 1


def test_the_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["replay", "--list"]) == EXIT_OK
    line = capsys.readouterr().out
    assert INFO.id in line and "night" in line and line.count("\n") == 1
    assert status_of(["ls"]) == EXIT_OK
    assert f"tuimon replay {INFO.id}" in capsys.readouterr().out


def test_attach_to_a_run_that_is_gone_leads_to_its_recording(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["attach", INFO.name, "--once"]) == EXIT_NO_RUN
    assert "`tuimon replay night`" in capsys.readouterr().err
    info = registry.create_run(name="ended", argv=["x"])
    ended = registry.RunInfo(
        info.id, "ended", info.host, info.uid, info.folder, ranks=[registry.RankInfo(0, 1, 1, "x")]
    )
    registry.save(ended)
    write_recording(recordings.folder_of(ended), a_run(20))
    shutil.rmtree(info.path)
    assert status_of(["attach", "ended", "--once"]) == EXIT_NO_RUN
    assert f"`tuimon replay {info.id}`" in capsys.readouterr().err


def test_a_folder_of_that_name_does_not_hide_a_run(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for named in (INFO.name, INFO.id[:5], "logs"):
        (tmp_path / named).mkdir()
    for named in (INFO.name, INFO.id[:5]):
        assert recordings.find_recording(named) == folder
    for named in ("logs", "./logs", f"{INFO.name}/"):
        assert status_of(["report", named, "-o", "-"]) == EXIT_NO_RUN, named
    said = capsys.readouterr().err
    assert "no recording of 'logs', and none in ./logs" in said
    assert f"no recording in {INFO.name}" in said
    shutil.copytree(folder, tmp_path / "sent")
    assert recordings.find_recording("sent") == Path("sent")
