"""What a page draws: steps under steps, round figures, words in the place of lone dots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.export.recorded import a_night, step, write
from tests.unit.export.test_postmortem import Page, report
from tuimon.export import drawing
from tuimon.model.records import Memory


def test_steps_stand_under_steps(tmp_path: Path) -> None:
    page = Page(report(write(tmp_path / "run", a_night()), tmp_path / "x.html"))
    (heat,) = [attrs for tag, attrs in page.tags if tag == "image"]
    x, width = float(heat["x"] or 0), float(heat["width"] or 0)
    assert (x, x + width) == (drawing.LEFT, drawing.WIDTH - drawing.RIGHT)
    told = [text for text in page.text if text in ("0", "10", "20", "30", "40", "50", "to 59")]
    charts = sum(attrs.get("class") in ("chart", "heat") for _, attrs in page.tags)
    assert charts > 4 and told.count("50") == told.count("to 59") == charts


@pytest.mark.parametrize(
    ("first", "last"), [(0, 599), (0, 12_884), (0, 9), (100, 141), (995, 1003), (0, 1_000_000)]
)
def test_round_steps_are_four_to_six(first: int, last: int) -> None:
    found = drawing.round_steps(first, last)
    assert 4 <= len(found) <= 6 and first <= found[0] and found[-1] <= last
    (every,) = set(np.diff(found).tolist())
    assert str(every).rstrip("0") in ("1", "2", "25", "5") and found[0] % every == 0


def test_a_few_values_are_told_and_the_newest_histogram_before_a_failure(tmp_path: Path) -> None:
    records = a_night()
    place = next(at for at, each in enumerate(records) if each == step(20))
    records.insert(place, Memory(1020.0, "cuda:0", 3 << 30))
    text = "".join(Page(report(write(tmp_path / "run", records), tmp_path / "x.html")).text)
    assert "memory/cuda:0, GiB: 3 at step 19; no more were taken" in text
    assert "weight, step 20 (newest before 40)" in text
    assert "weight, step 0" in text and "weight, step 40" in text
