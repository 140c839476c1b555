"""A file that a person has named has its new content or its old one, never a part of either."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.export.recorded import a_night, write
from tuimon.cli import status_of
from tuimon.errors import EXIT_OK, EXIT_REFUSED
from tuimon.feed import private


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file grows beyond a few bytes, as where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_file_behind_a_link_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    target, link = tmp_path / "r.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    private.put(link, b"new", mode=0o640)
    assert target.read_bytes() == b"new" and link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.json", "r.json"]


def test_a_device_is_written_to_and_nothing_else_is_that_is_no_file(tmp_path: Path) -> None:
    private.put(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "pipe")  # waiting for a reader could be for ever
    for place in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match="not a regular file"):
            private.put(place, b"x")
    with pytest.raises(FileNotFoundError):
        private.put(tmp_path / "nowhere" / "r.json", b"x")


def test_without_room_the_old_file_stays(tmp_path: Path, full_disk: None) -> None:
    for write_whole in (private.put, private.replace):
        target = tmp_path / "r.json"
        target.write_text("old")
        with pytest.raises(OSError, match="too large"):
            write_whole(target, b"much more than fits")
        assert target.read_text() == "old"
        assert os.listdir(tmp_path) == ["r.json"]


@pytest.mark.parametrize("kind", ["csv", "parquet", "tensorboard"])
def test_tables_are_all_there_or_none(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    pytest.importorskip({"csv": "csv", "parquet": "pyarrow"}.get(kind, kind))
    run, mine = str(write(tmp_path / "run", a_night(20, None))), tmp_path / "mine"
    mine.mkdir()
    assert status_of(["export", run, f"--{kind}", str(tmp_path / "whole")]) == EXIT_OK
    assert all(not each.name.startswith(".") for each in (tmp_path / "whole").iterdir())
    request.getfixturevalue("full_disk")
    for place in (mine, tmp_path / "new"):
        capsys.readouterr()
        assert status_of(["export", run, f"--{kind}", str(place)]) == EXIT_REFUSED
        said = capsys.readouterr().err
        assert "too large" in said and said.count("\n") == 1
    assert os.listdir(mine) == [] and not (tmp_path / "new").exists()


def test_a_report_and_a_picture_are_whole_or_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    run = str(write(tmp_path / "run", a_night(20, None)))
    target, link = tmp_path / "x.md", tmp_path / "link.md"
    link.symlink_to(target)
    umask = os.umask(0o027)
    try:
        assert status_of(["report", run, "-o", str(link)]) == EXIT_OK
    finally:
        os.umask(umask)
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o640
    request.getfixturevalue("full_disk")
    before, picture = target.read_bytes(), tmp_path / "x.svg"
    for words, status in (
        (["report", run, "-o", str(link)], EXIT_REFUSED),
        (["replay", run, "--once", "--svg", str(picture)], EXIT_REFUSED),
    ):
        capsys.readouterr()
        assert status_of(words) == status
        said = capsys.readouterr().err
        assert "too large" in said and said.count("\n") == 1
    assert target.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["link.md", "run", "x.md"]
