"""The GradScaler's account: calibration is healthy, a scale that never fits is a collapse."""

from __future__ import annotations

import pytest

from tuimon.diagnose.amp import CALIBRATED_AFTER, SKIPS_FROM_START, SKIPS_ONCE_CALIBRATED
from tuimon.diagnose.engine import Engine
from tuimon.model.records import DeviceStats, Step


def run(scales: list[tuple[float | None, bool]], engine: Engine | None = None) -> Engine:
    engine = engine or Engine()
    for index, (scale, skipped) in enumerate(scales):
        engine.see(Step(index, 0, loss=1.0, loss_scale=scale, skipped=skipped))
    return engine


def halvings(start: float, count: int) -> list[tuple[float | None, bool]]:
    return [(start / 2**n, True) for n in range(count)]


def collapses(engine: Engine) -> list[int | None]:
    return [s.step for s in engine.symptoms if s.kind == "loss-scale-collapse"]


def test_without_a_scaler_there_is_no_verdict():
    engine = run([(None, False)] * 3)
    assert (engine.amp.verdict, engine.amp.scale_first) == ("none", None)


@pytest.mark.hazard(46)
def test_calibration_of_the_first_steps_is_no_symptom():
    engine = run([*halvings(65536.0, 5), *[(2048.0, False)] * CALIBRATED_AFTER])
    assert engine.symptoms == []
    assert engine.amp.verdict == "healthy"
    assert (engine.amp.scale_first, engine.amp.scale_last) == (65536.0, 2048.0)
    assert (engine.amp.attempted, engine.amp.skipped) == (15, 5)
    assert run([*halvings(65536.0, 5), (2048.0, False)]).amp.verdict == "calibrating"


def test_an_occasional_overflow_later_is_healthy():
    calm = [(2048.0, False)] * CALIBRATED_AFTER
    engine = run([*calm, (4096.0, True), *calm, (4096.0, True), *calm])
    assert (engine.amp.verdict, engine.symptoms) == ("healthy", [])


def test_a_scale_below_one_that_still_overflows_is_a_collapse():
    engine = run([*[(1024.0, False)] * 6, *halvings(1024.0, 14)])
    assert engine.amp.verdict == "collapsing"
    assert collapses(engine) == [6]


def test_a_row_that_no_calibration_needs_is_a_collapse():
    high = 2.0**100
    assert collapses(run(halvings(high, SKIPS_FROM_START - 1))) == []
    assert collapses(run(halvings(high, SKIPS_FROM_START))) == [0]
    calm = [(high, False)] * CALIBRATED_AFTER
    assert collapses(run([*calm, *halvings(high, SKIPS_ONCE_CALIBRATED)])) == [CALIBRATED_AFTER]


def test_an_update_ends_the_collapse():
    engine = run([*halvings(2.0, 10), (0.001, False)])
    assert len(collapses(engine)) == 1
    assert engine.amp.verdict == "calibrating"


def test_a_late_flag_counts_once():
    engine = Engine()
    for index in range(3):
        engine.see(Step(index, 0, loss_scale=4.0, late=True))
        engine.see(DeviceStats(index, found_inf=index == 1))
    assert (engine.amp.attempted, engine.amp.skipped) == (3, 1)
