"""What is written of a run that goes on, or of which ranks are missing, says what it leaves out."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.export.recorded import BAD_STEP, NAMES, STEPS, a_night, info, step
from tuimon.cli import status_of
from tuimon.feed.codec import encode
from tuimon.feed.recorder import Recorder
from tuimon.feed.registry import ExitInfo, RankInfo, RunInfo
from tuimon.model.autopsy import Autopsy
from tuimon.model.records import AnyRecord, Goodbye, LayerTable, Loss, Memory

PIDS = (77, 78)


def recorded(
    folder: Path, *parts: list[AnyRecord], exit_info: ExitInfo | None = None
) -> tuple[Path, RunInfo]:
    """A recording of a run with two ranks, of those that have `parts`."""
    ranks = [RankInfo(place, pid, 5, f"{pid}.ring") for place, pid in enumerate(PIDS)]
    said = info()
    run = RunInfo(
        said.id, said.name, said.host, 0, "/x", said.argv, ranks=ranks, world_size=2, exit=exit_info
    )
    for pid, records in zip(PIDS, parts, strict=False):
        recorder = Recorder(folder, run, pid, keep_free_bytes=0)
        for sequence, record in enumerate(records, 1):
            recorder.append(encode(record), sequence)
        recorder.close()
    return folder, run


def ranks_of_a_night(steps: int = STEPS, guilty: int = 1) -> list[list[AnyRecord]]:
    """Both hold the same bad gradient, and one has seen a bad loss by itself before."""
    parts: list[list[AnyRecord]] = []
    for rank in range(2):
        records: list[AnyRecord] = [LayerTable(0, NAMES, [[4, 2], [4], [1]])]
        for index in range(steps):
            is_bad = index >= BAD_STEP
            bad_loss = math.nan if is_bad and rank == guilty else None
            if bad_loss is not None:
                records.append(Loss(index, bad_loss))
            norms = (1.0, 2.0, math.nan if is_bad else 3.0)
            records.append(step(index, loss=bad_loss, norms=norms))
        parts.append([*records, Goodbye("ok", 0)])
    return parts


def report(folder: Path, tmp_path: Path) -> dict[str, Any]:
    assert status_of(["report", str(folder), "-o", str(tmp_path / "x.json")]) == 0
    document: dict[str, Any] = json.loads((tmp_path / "x.json").read_text())
    return document


def page(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert status_of(["report", str(folder), "-o", "-"]) == 0
    return capsys.readouterr().out


def test_a_report_made_anew_is_of_all_ranks(tmp_path: Path) -> None:
    folder, _ = recorded(tmp_path / "run", *ranks_of_a_night(), exit_info=ExitInfo("ok", 0))
    document = report(folder, tmp_path)
    assert (document["run"]["ranks"], document["run"]["steps"]) == (2, STEPS)
    assert [(each["rank"], each["steps"]) for each in document["run"]["by_rank"]] == [
        (0, STEPS),
        (1, STEPS),
    ]
    bad = [each for each in document["symptoms"] if each["kind"] == "non-finite-loss"]
    assert {each["rank"] for each in bad} == {1}, "only one rank has seen a bad loss"
    assert document["outcome"] == "diverged" and document["lost"]["records"] == 0


def test_a_damaged_second_rank_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    folder, _ = recorded(tmp_path / "run", *ranks_of_a_night(), exit_info=ExitInfo("ok", 0))
    (file,) = folder.glob(f"{PIDS[1]}-*.tuimon")
    data = bytearray(file.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 300] = bytes(300)
    file.write_bytes(data[:-10])
    document = report(folder, tmp_path)
    assert document["lost"]["reasons"]["damaged"] >= 2
    assert document["lost"]["reasons"]["torn"] == 1
    bad = [each for each in document["symptoms"] if each["kind"] == "non-finite-loss"]
    assert {each["rank"] for each in bad} == {1}


@pytest.mark.parametrize("left", ["nothing", "void"])
def test_a_rank_that_cannot_be_read_is_told(
    tmp_path: Path, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = recorded(tmp_path / "run", *ranks_of_a_night(), exit_info=ExitInfo("ok", 0))
    (file,) = folder.glob(f"{PIDS[1]}-*.tuimon")
    file.unlink() if left == "nothing" else file.write_bytes(b"TUIMONRCab")
    document = report(folder, tmp_path)
    assert document["lost"]["reasons"] == {"recording of rank 1": 1}
    assert document["outcome"] == "diverged", "rank 0 has the bad gradient too"
    assert "recording of rank 1" in page(folder, capsys)


def test_what_a_page_draws_says_of_which_rank_it_is(tmp_path: Path) -> None:
    one, other = ranks_of_a_night(3)
    other.insert(-1, Autopsy(2, 0, rank=1, trigger="non-finite-loss"))
    folder, _ = recorded(tmp_path / "run", one, other, exit_info=ExitInfo("exception", 1, "No"))
    assert status_of(["report", str(folder), "-o", str(tmp_path / "x.html")]) == 0
    text = (tmp_path / "x.html").read_text()
    for title in (
        *("<h2>The run: the charts of rank 0 alone</h2>", "<h2>Layers of rank 0 alone: "),
        "<h2>The operation at step 2, rank 1</h2>",
    ):
        assert title in text, title
    assert "After 3 steps (the last is step 2) it ended by an exception: No" in text


def test_tables_are_of_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = ranks_of_a_night()
    one.insert(9, Memory(1003.5, "cuda:0", 2**20, 2**21))
    folder, _ = recorded(tmp_path / "run", one, other, exit_info=ExitInfo("ok", 0))
    out = tmp_path / "csv"
    assert status_of(["export", str(folder), "--csv", str(out), "--layers"]) == 0
    assert "alone" not in capsys.readouterr().err
    tables = {path.stem: list(csv.DictReader(path.open())) for path in out.iterdir()}
    assert [(row["rank"], row["step"]) for row in tables["steps"]] == [
        (str(rank), str(index)) for rank in range(2) for index in range(STEPS)
    ]
    bad = {(row["rank"], row["step"]) for row in tables["steps"] if row["loss"] == "nan"}
    assert bad == {("1", str(index)) for index in range(BAD_STEP, STEPS)}
    assert {row["rank"] for row in tables["layers"]} == {"0", "1"}
    symptoms = [(s["rank"], s["step"], s["kind"]) for s in report(folder, tmp_path)["symptoms"]]
    assert {rank for rank, _, _ in symptoms} == {0, 1}
    assert [(int(s["rank"]), int(s["step"]), s["kind"]) for s in tables["symptoms"]] == symptoms
    (memory,) = tables["memory"]
    assert memory == {
        **{"step": "7", "time_s": "1003.5", "device": "cuda:0", "allocated_bytes": str(2**20)},
        **{"reserved_bytes": str(2**21), "peak_bytes": "", "rank": "0"},
    }
    next(folder.glob(f"{PIDS[1]}-*")).unlink()
    assert status_of(["export", str(folder), "--csv", str(tmp_path / "one")]) == 0
    said = capsys.readouterr().err
    assert "recording of rank 1 is not there" in said and "rank 0 alone, of 2" in said


def test_each_rank_has_a_folder_of_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    parts = ranks_of_a_night(3)
    folder, _ = recorded(tmp_path / "run", *parts, exit_info=ExitInfo("ok", 0))
    out = tmp_path / "board"
    assert status_of(["export", str(folder), "--tensorboard", str(out)]) == 0
    assert [len(list((out / name).iterdir())) for name in ("rank_0", "rank_1")] == [1, 1]


def test_a_run_that_goes_on_is_no_run_that_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [[each for each in part if not isinstance(each, Goodbye)] for part in
             ranks_of_a_night(BAD_STEP)]  # fmt: skip
    folder, _ = recorded(tmp_path / "run", *parts)
    capsys.readouterr()
    document = report(folder, tmp_path)
    words = f"the run goes on: this covers it up to step {BAD_STEP - 1}"
    assert words in capsys.readouterr().err
    assert document["run"]["exit"]["kind"] == "running"
    shown = page(folder, capsys)
    assert words[4:] in shown and "ended by itself" not in shown
    assert status_of(["export", str(folder), "--csv", str(tmp_path / "csv")]) == 0
    said = capsys.readouterr().err
    assert f"{words} at least" in said and "alone" not in said
    for file in folder.iterdir():  # its recorder has died long ago
        os.utime(file, (1e9, 1e9))
    document = report(folder, tmp_path)
    words = f"the end was not recorded: this covers it up to step {BAD_STEP - 1}"
    assert words in capsys.readouterr().err and document["run"]["exit"]["kind"] == "unrecorded"
    assert words[4:] in page(folder, capsys)


def test_nothing_is_said_of_a_run_that_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = recorded(tmp_path / "run", a_night(), exit_info=ExitInfo("ok", 0))
    report(folder, tmp_path)
    assert capsys.readouterr().err.count("\n") == 1
