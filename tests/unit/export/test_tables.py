"""Exported tables are read back by the libraries that own their formats; missing is not NaN."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from tests.unit.export.recorded import BAD_STEP, NAMES, STEPS, a_night, write
from tuimon.cli import status_of
from tuimon.errors import EXIT_REFUSED, EXIT_USAGE
from tuimon.model.findings import FindingRecord
from tuimon.model.records import (
    NO_GRAD,
    UNMEASURED,
    DeviceReading,
    DeviceStats,
    LayerTable,
    Step,
    Symptom,
    System,
)
from tuimon.model.text import plain


def test_csv(tmp_path: Path) -> None:
    run, out = write(tmp_path / "run", a_night()), tmp_path / "out"
    assert status_of(["export", str(run), "--csv", str(out), "--layers"]) == 0
    tables = {path.stem: list(csv.DictReader(path.open())) for path in out.iterdir()}
    steps = tables["steps"]
    assert [int(row["step"]) for row in steps] == list(range(STEPS))
    assert float(steps[3]["loss"]) == 0.25 and math.isnan(float(steps[BAD_STEP]["loss"]))
    assert {row["loss_scale"] for row in steps} == {""}, "what is missing is an empty cell"
    assert {row["lr_0"] for row in steps} == {"0.1"} and {row["lr_1"] for row in steps} == {""}
    assert [row["value"] for row in tables["scalars"]] == ["0.5", "0.5", "inf"]
    assert len(tables["layers"]) == 3 * STEPS
    assert {row["layer"] for row in tables["layers"]} == {plain(name) for name in NAMES}
    assert "\x1b" not in (out / "events.csv").read_text()


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run, out = write(tmp_path / "run", a_night()), tmp_path / "out"
    assert status_of(["export", str(run), "--parquet", str(out)]) == 0
    steps = parquet.read_table(out / "steps.parquet")
    loss = steps.column("loss")
    assert loss.null_count == 0 and math.isnan(loss[BAD_STEP].as_py())
    assert steps.column("loss_scale").null_count == STEPS
    assert str(steps.schema.field("step").type) == "int64"
    assert not (out / "layers.parquet").exists()


def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, out = write(tmp_path / "run", a_night()), tmp_path / "out"
    assert status_of(["export", str(run), "--tensorboard", str(out)]) == 0
    board = accumulator.EventAccumulator(str(out), size_guidance={"scalars": 0, "histograms": 0})
    board.Reload()
    loss = board.Scalars("loss")
    assert [each.step for each in loss] == list(range(STEPS))
    assert loss[3].value == 0.25 and loss[3].wall_time == 1003.0 and math.isnan(loss[-1].value)
    assert board.Scalars("valid/loss")[-1].value == math.inf
    first = board.Histograms(f"weight/{NAMES[0]}")[0].histogram_value
    assert first.num == 8 and sum(first.bucket) == 8
    # Bin 40 of the positive ones holds magnitudes from 2^-8 to 2^-7, bin 49 of the others 2 to 4.
    assert (first.min, first.max) == (-4.0, 2.0**-7)
    filled = [(limit, n) for limit, n in zip(first.bucket_limit, first.bucket, strict=True) if n]
    assert filled == [(-2.0, 3.0), (2.0**-7, 5.0)]


def test_what_a_device_says_later_is_in_the_row_of_its_step(tmp_path: Path) -> None:
    late = [Step(index, 10**9, late=True) for index in range(6)]
    told = [DeviceStats(index, loss=float(index), grad_norm=1.0) for index in range(5)]
    records = [LayerTable(0, ["a"]), *late[:2], told[0], late[2], *told[1:3], *late[3:], *told[3:]]
    run, out = write(tmp_path / "run", records), tmp_path / "out"
    assert status_of(["export", str(run), "--csv", str(out)]) == 0
    rows = list(csv.DictReader((out / "steps.csv").open()))
    assert [row["step"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert [row["loss"] for row in rows] == ["0.0", "1.0", "2.0", "3.0", "4.0", ""]


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(write(tmp_path / "run", a_night(3, None))), tmp_path / "out"
    assert status_of(["export", run]) == EXIT_USAGE
    assert status_of(["export", run, "--csv", str(out)]) == 0
    before = (out / "steps.csv").read_bytes()
    capsys.readouterr()
    assert status_of(["export", run, "--csv", str(out)]) == EXIT_REFUSED
    assert "steps.csv is there already" in capsys.readouterr().err
    assert (out / "steps.csv").read_bytes() == before
    (tmp_path / "file").write_text("")
    assert status_of(["export", run, "--csv", str(tmp_path / "file")]) == EXIT_REFUSED


def test_a_layer_without_gradient_has_no_row(tmp_path: Path) -> None:
    norms = np.array([0.0, 2.0, 0.0], "<f4").tobytes()
    flags = bytes([NO_GRAD, 0, UNMEASURED])
    records = [LayerTable(0, ["a", "b", "c"]), Step(0, 10**9, norms=norms, flags=flags)]
    run, out = write(tmp_path / "run", records), tmp_path / "out"
    assert status_of(["export", str(run), "--csv", str(out), "--layers"]) == 0
    rows = list(csv.DictReader((out / "layers.csv").open()))
    assert [(row["layer"], row["grad_norm"]) for row in rows] == [("b", "2.0")]


def test_readings_have_tables(tmp_path: Path) -> None:
    device = DeviceReading(1, "H\x1b200", memory_used_bytes=5, utilisation_frac=0.5)
    records = [Step(4, 10**9), System(7.5, [device], trainer_rss_bytes=2**30)]
    run, out = write(tmp_path / "run", records), tmp_path / "out"
    assert status_of(["export", str(run), "--csv", str(out)]) == 0
    (system,) = csv.DictReader((out / "system.csv").open())
    told = (
        system["step"],
        system["time_s"],
        system["trainer_rss_bytes"],
        system["scribe_rss_bytes"],
    )
    assert told == ("4", "7.5", str(2**30), "")
    (read,) = csv.DictReader((out / "devices.csv").open())
    assert (read["device"], read["memory_used_bytes"], read["power_w"]) == ("nvidia:1", "5", "")
    assert read["utilisation_frac"] == "0.5" and "\x1b" not in read["name"]


def test_symptoms_and_the_newest_of_each_finding_have_rows(tmp_path: Path) -> None:
    records = [
        Symptom("spike", 3, 0, "info", "it jumped"),
        FindingRecord("a", "log-zero", status="consistent", step=3, file="t.py", line=7),
        FindingRecord("a", "log-zero", status="confirmed", step=3, file="t.py", line=7),
    ]
    run, out = write(tmp_path / "run", records), tmp_path / "out"
    assert status_of(["export", str(run), "--csv", str(out)]) == 0
    (symptom,) = csv.DictReader((out / "symptoms.csv").open())
    (finding,) = csv.DictReader((out / "findings.csv").open())
    assert (symptom["step"], symptom["kind"], symptom["text"]) == ("3", "spike", "it jumped")
    assert (finding["status"], finding["place"]) == ("confirmed", "t.py:7")
