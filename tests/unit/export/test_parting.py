"""Two runs part where the first number differs, by however little, and nowhere else."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.unit.export.recorded import NAMES, a_night, step, write
from tuimon.cli import status_of
from tuimon.export.parting import Parting, compare
from tuimon.export.postmortem import open_run
from tuimon.model.records import AnyRecord, CommandState, DeviceStats, Goodbye, Step


def parting(one: list[AnyRecord], other: list[AnyRecord]) -> Parting:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = write(folder / "a", one, "first"), write(folder / "b", other, "second")
        return compare(*(open_run(str(each)) for each in runs))


@settings(max_examples=15, deadline=None)
@given(at=st.integers(0, 19), layer=st.integers(0, 2), grows=st.booleans())
def test_the_smallest_difference_is_found(at: int, layer: int, grows: bool) -> None:
    one = a_night(20, None)
    norms = np.array([1.0, 2.0, 3.0], np.float32)
    norms[layer] = np.nextafter(norms[layer], np.float32(np.inf if grows else 0))
    place = next(i for i, each in enumerate(one) if isinstance(each, Step) and each.step == at)
    other = [*one]
    # Everything but that norm stays as it was, the total of them too.
    other[place] = step(at, norms=norms.tolist())
    found = parting(one, other)
    assert found.compared == 20 and found.first is not None
    assert (found.first.step, found.first.layers[0][0]) == (at, NAMES[layer])
    assert found.first.layers_differ == 1 and found.clearly is None
    assert found.same_to == (at - 1 if at else None)


def test_the_same_run_does_not_part_also_where_it_is_nan() -> None:
    found = parting(a_night(), a_night())
    assert found.first is None and found.compared == 60
    assert "All 60 steps" in found.sections()[0].text[0]


def test_a_nan_is_a_clear_difference(tmp_path: Path) -> None:
    found = parting(a_night(bad_step=None), a_night(bad_step=7))
    assert found.first is found.clearly and found.first is not None and found.first.step == 7
    (name, left, right) = found.first.figures[0]
    assert name == "loss" and left == 0.125 and right is not None and math.isnan(right)


def test_steps_that_one_has_not_recorded_are_not_compared() -> None:
    gap = [each for each in a_night(20, None) if not (isinstance(each, Step) and each.step % 2)]
    found = parting(a_night(20, None), gap)
    assert found.compared == 10 and found.first is None


def test_each_kind_of_difference_has_its_first_step(tmp_path: Path) -> None:
    def changed(each: AnyRecord) -> AnyRecord:
        if not isinstance(each, Step):
            return each
        lrs = [0.3] if each.step >= 5 else each.lrs
        loss, norms = each.loss, [1.0, 2.0, 3.0]
        assert loss is not None
        if each.step >= 7:
            loss = np.nextafter(loss, 2.0)
        if each.step >= 8:
            norms[1] = float(np.nextafter(np.float32(2.0), np.float32(3.0)))
        if each.step >= 11:
            loss *= 1.1
        made = step(each.step, loss=float(loss), norms=norms)
        return structs.replace(made, lrs=lrs, grad_norm=each.grad_norm)

    one = a_night(20, None)
    other = [changed(each) for each in one]
    found = parting(one, other)
    firsts = (found.first, found.settings, found.results, found.layer, found.clearly)
    assert [each.step for each in firsts if each is not None] == [5, 5, 7, 8, 11]
    assert found.same_to == 4 and found.document()["results"]["step"] == 7
    told = found.sections()
    assert told[0].text[1:] == [
        "Settings differ first at step 5: learning rate of group 0.",
        "Loss or norms differ first at step 7.",
        "The first layer to differ is body.0.bias, at step 8.",
        "Loss or norm differ by more than 1 % first at step 11.",
    ]
    assert [each.title for each in told[1:]] == [
        *("The first difference: step 5", "Loss and norms: step 7", "Layers: step 8"),
        "More than 1 %: step 11",
    ]
    clipped = [structs.replace(each, max_norm=1.0, clip="on") if isinstance(each, Step) and
               each.step >= 3 else each for each in one]  # fmt: skip
    settings = parting(one, clipped).settings
    assert settings is not None and settings.step == 3
    assert settings.figures == [("max_norm", None, 1.0), ("clip", "user", "on")]


def test_what_a_device_says_later_is_compared() -> None:
    def told(loss: float) -> list[AnyRecord]:
        late: list[AnyRecord] = [Step(index, 10**9, late=True) for index in range(3)]
        return [*late, *(DeviceStats(index, loss=loss + index) for index in range(3))]

    found = parting(told(1.0), told(2.0))
    assert found.first is not None and found.first.figures == [("loss", 1.0, 2.0)]
    assert found.clearly is found.first


def test_the_report_of_two_runs(tmp_path: Path) -> None:
    one = write(tmp_path / "a", a_night(bad_step=None), "first")
    other = write(tmp_path / "b", a_night(bad_step=7), "second")
    for kind in ("html", "md"):
        path = tmp_path / f"x.{kind}"
        assert status_of(["report", str(one), str(other), "-o", str(path)]) == 0
        assert "They part at step 7" in path.read_text()
    assert status_of(["report", str(one), str(other), "-o", str(tmp_path / "x.json")]) == 0
    document = json.loads((tmp_path / "x.json").read_text())
    assert document["schema"] == "tuimon.parting/1" and document["first"]["step"] == 7
    assert [each["outcome"] for each in document["runs"]] == ["healthy", "diverged"]


def test_what_was_asked_of_one_run_is_said_where_they_part() -> None:
    asked = CommandState("1", "SetMaxNorm", "applied", step=7, old="1", new="0.5")
    paused = CommandState("2", "Pause", "applied", step=3)
    late = CommandState("3", "ScaleLr", "applied", step=12)
    one = a_night(20, None)
    other = [*a_night(20, 7)[:-1], asked, paused, late, Goodbye("ok", 0)]
    found = parting(one, other)
    assert found.reached == [("second", 7, "max_norm")]
