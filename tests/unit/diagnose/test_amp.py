"""The GradScaler's account: calibration is healthy, a scale that never fits is a collapse."""

from __future__ import annotations

import math

import pytest

from tuimon.diagnose.accounts import amp_section
from tuimon.diagnose.amp import (
    CALIBRATED_AFTER,
    SKIPS_FROM_START,
    SKIPS_ONCE_CALIBRATED,
    SKIPS_WITH_BAD_LOSS,
    SKIPS_WITH_ROOM,
    STARVED_AFTER,
    AmpLedger,
)
from tuimon.diagnose.engine import Engine
from tuimon.model.amp import FIRST_SKIPS, MAX_SKIPS, AmpCalls, AmpSkip
from tuimon.model.records import NAN, POS_INF, DeviceStats, LayerTable, Step
from tuimon.model.samples import Activation, Activations, ParameterSample, ParameterSamples


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


def steps(
    *rows: tuple[float, bool], loss: float = 1.0, first: int = 0, grad_norm: float = 1.0
) -> list[Step]:
    return [
        Step(first + index, 0, loss=loss, loss_scale=scale, skipped=skipped, grad_norm=grad_norm)
        for index, (scale, skipped) in enumerate(rows)
    ]


def fed(*records: object) -> Engine:
    engine = Engine()
    for record in records:
        engine.see(record)  # type: ignore[arg-type]
    return engine


def test_a_loss_that_is_bad_before_it_is_scaled_fits_no_scale():
    calm = [(1024.0, False)] * 6
    rows = halvings(1024.0, SKIPS_WITH_BAD_LOSS)
    bad = [
        Step(6 + n, 0, loss=math.nan, loss_scale=scale, skipped=True)
        for n, (scale, _) in enumerate(rows)
    ]
    assert fed(*steps(*calm), *bad[:-1]).amp.verdict == "calibrating"
    engine = fed(*steps(*calm), *bad)
    assert engine.amp.verdict == "collapsing" and collapses(engine) == [6]
    assert "no scale can help" in engine.amp.why
    # A loss that is fine in between is another story.
    mixed = [bad[0], *steps((1024.0, True), first=7), *bad[:-1]]
    assert collapses(fed(*steps(*calm), *mixed)) == []


def test_a_scale_that_grows_has_been_found():
    # An interval of growth shorter than the calm that ends a calibration.
    rows = [(1024.0, True), *[(512.0, False)] * 3, (1024.0, True), (512.0, False)]
    engine = run(rows)
    assert engine.amp.verdict == "healthy" and engine.symptoms == []
    assert (engine.amp.scale_min, engine.amp.scale_max) == (512.0, 1024.0)


def test_updates_and_overflows_in_turn_are_a_scale_at_its_edge():
    rows = [(1024.0, True), (512.0, False)] * CALIBRATED_AFTER
    assert run(rows).amp.verdict == "healthy"


def test_a_scale_of_nothing_is_critical_in_words_of_its_own():
    engine = run([*halvings(1.0, 160), (0.0, True), (0.0, True)])
    found = [s for s in engine.symptoms if s.kind == "loss-scale-collapse"]
    assert [s.severity for s in found] == ["critical"] * 3
    assert "the overflow does not come from the scale" in found[0].detail
    assert "below what single precision can divide by" in found[1].detail
    assert "the loss scale is 0" in found[2].detail and found[2].step == 160
    assert engine.amp.verdict == "collapsing"


def test_scale_zero_is_seen_by_itself():
    (symptom,) = run([(0.0, True)]).symptoms
    assert (symptom.kind, symptom.severity, symptom.step) == ("loss-scale-collapse", "critical", 0)
    assert "the loss scale is 0" in symptom.detail


def test_a_scale_so_low_that_gradients_vanish():
    starved = steps(*[(4.0, False)] * STARVED_AFTER, first=1, grad_norm=0.0)
    engine = fed(*steps((65536.0, True)), *starved)
    assert engine.amp.verdict == "collapsing" and collapses(engine) == [1]
    # Zero gradients at the scale that was asked for have another cause.
    engine = fed(*steps(*[(4.0, False)] * 20, grad_norm=0.0))
    assert engine.amp.verdict == "healthy" and engine.symptoms == []


def test_an_update_left_out_by_somebody_else_is_no_overflow():
    engine = fed(Step(0, 0, loss_scale=4.0, skipped=True, found_inf=False))
    assert (engine.amp.attempted, engine.amp.skipped) == (1, 0)


def test_a_scale_on_a_device_arrives_with_the_flags():
    skip = AmpSkip(1)
    records = [
        LayerTable(0, ["a", "b", "c"]),
        *(Step(n, 0, late=True, skipped=n == 1) for n in range(3)),
        skip,
        DeviceStats(0, loss_scale=4.0, found_inf=False),
        DeviceStats(1, loss_scale=4.0, found_inf=True, flags=bytes([NAN, POS_INF, 0])),
        DeviceStats(2, loss_scale=2.0, found_inf=False),
    ]
    amp = fed(*records).amp
    assert (amp.attempted, amp.skipped, amp.scale_last) == (3, 1, 2.0)
    assert (amp.skips[0].name, amp.skips[0].tensors) == ("b", 2)


def test_skips_are_bounded_with_their_beginning():
    amp = fed(*(AmpSkip(n) for n in range(MAX_SKIPS + 10))).amp
    assert len(amp.skips) == MAX_SKIPS
    assert [amp.skips[0].step, amp.skips[FIRST_SKIPS - 1].step] == [0, FIRST_SKIPS - 1]
    assert amp.skips[-1].step == MAX_SKIPS + 9


def test_headroom_is_that_of_the_tightest_newest_sample():
    amp = fed(
        *steps((1024.0, False)),
        ParameterSamples(0, items=[ParameterSample("a", 32.0), ParameterSample("b", 1.0)]),
        *steps((1024.0, False), first=1),
        ParameterSamples(1, items=[ParameterSample("a", 0.5)]),
        Activations(1, items=[Activation("m", 1, 4, absmax=65504 / 2, dtype="float16")]),
        Activations(1, items=[Activation("n", 1, 4, absmax=1e9, dtype="float32")]),
    ).amp
    gradient, activation = amp.gradient_headroom, amp.activation_headroom
    assert gradient is not None and activation is not None
    assert (gradient.name, gradient.absmax, gradient.step) == ("b", 1024.0, 0)
    assert gradient.factor == 65504 / 1024
    assert (activation.name, activation.factor) == ("m", 2.0)


def test_a_change_of_the_verdict_is_told_once():
    ledger = AmpLedger()
    told = []
    rows = [*halvings(2.0**100, 5), *[(8.0, False)] * 12, *halvings(8.0, 12)]
    for index, (scale, skipped) in enumerate(rows):
        list(ledger.see(Step(index, 0, loss_scale=scale, skipped=skipped)))
        if (change := ledger.changed()) is not None:
            told.append((change.verdict, bool(change.why)))
    assert told == [("calibrating", False), ("healthy", False), ("collapsing", True)]


def test_the_report_tells_what_was_left_out_and_which_order_was_wrong():
    engine = fed(
        *steps((4.0, True), (2.0, False)),
        AmpSkip(0, name="head.weight", nan=3, posinf=1, neginf=0, numel=8, tensors=2),
        AmpCalls(scaled=2, scaler_steps=2, clipped_scaled=1, first={"clipped_scaled": 1}),
    )
    section = amp_section(engine.amp)
    assert {key: section[key] for key in ("scale_first", "scale_last", "skipped", "verdict")} == {
        "scale_first": 4.0,
        "scale_last": 2.0,
        "skipped": 1,
        "verdict": "calibrating",
    }
    (skip,) = section["skips"]
    assert (skip["step"], skip["tensor"], skip["nan"], skip["posinf"]) == (0, "head.weight", 3, 1)
    assert section["calls"]["wrong_order"] == {"clipped_scaled": 1}
    assert section["calls"]["scaler_steps"] == 2


def roomy(scales: list[tuple[float, bool]], absmax: float) -> list[str]:
    """Severities of gradient symptoms where the largest gradient was `absmax` throughout."""
    engine = fed(*steps((scales[0][0], False)), sample(absmax))
    for index, (scale, skipped) in enumerate(scales, start=1):
        norm = math.nan if skipped else 1.0
        engine.see(Step(index, 0, loss=1.0, loss_scale=scale, skipped=skipped, grad_norm=norm))
        engine.see(sample(absmax))
    return [s.severity for s in engine.symptoms if s.kind == "non-finite-gradient"]


def sample(absmax: float) -> ParameterSamples:
    return ParameterSamples(0, items=[ParameterSample("a", absmax)])


def test_skips_at_ever_smaller_scales_with_room_are_no_matter_of_the_scale():
    calm = CALIBRATED_AFTER
    falling = [
        each
        for n in range(SKIPS_WITH_ROOM)
        for each in [*[(65536.0 / 2**n, False)] * calm, (65536.0 / 2**n, True)]
    ]
    assert roomy(falling, 1e-3).count("warning") == 1
    # At its edge a scale falls as well; and calibration, or a scale that grows again, has no room.
    assert "warning" not in roomy(falling, 0.5)
    assert "warning" not in roomy([(65536.0 / 2**n, True) for n in range(8)], 1e-3)
    growing = [*[(65536.0, False)] * calm, (131072.0, True)] * SKIPS_WITH_ROOM
    assert "warning" not in roomy(growing, 1e-3)
