"""Spikes, explosions and drift on synthetic losses: what is told, and what must not be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.diagnose.series import (
    Curve,
    diagnose,
    falling,
    loud,
    noisy,
    of_kind,
    step,
    table,
    training,
)
from tuimon.diagnose.detectors.course import LAG, WARM_UP
from tuimon.model.records import DeviceStats
from tuimon.model.samples import ParameterSample, ParameterSamples


def flat(at: int) -> float:
    return 1.0 + 0.01 * math.sin(at)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    sigma=st.floats(0.0, 1.2),
    scale=st.floats(1e-12, 1e12),
    first=st.integers(0, 10**7),
    outlier=st.one_of(st.none(), st.integers(60, 390)),
)
def test_a_healthy_training_is_left_alone_at_any_scale_noise_and_step(
    seed: int, sigma: float, scale: float, first: int, outlier: int | None
) -> None:
    curve = noisy(falling, sigma, seed)

    def loss(at: int) -> float:
        value = curve(at - first)
        assert value is not None
        return value * scale * (200.0 if at - first == outlier else 1.0)

    engine = diagnose(training(range(first, first + 400), loss, noisy(lambda _: 1.0, sigma, seed)))
    assert loud(engine) == []


@settings(max_examples=40, deadline=None)
@given(scale=st.floats(1e-12, 1e12), first=st.integers(0, 10**7), at=st.integers(80, 250))
def test_a_shard_of_strange_data_is_found_at_any_scale(scale: float, first: int, at: int) -> None:
    def loss(step_: int) -> float:
        inside = at <= step_ - first < at + 8
        return scale * (50.0 if inside else flat(step_))

    engine = diagnose(training(range(first, first + 300), loss))
    assert loud(engine) == [("spike", first + at, "warning")]
    warned = of_kind(engine, "spike")[-1]
    assert warned.figures["steps"] == 8 and warned.figures["times"] == pytest.approx(50, rel=0.1)


def test_a_single_outlier_is_a_remark_however_large() -> None:
    engine = diagnose(training(range(200), lambda at: 1e6 if at == 120 else flat(at)))
    assert loud(engine) == []
    (spike,) = of_kind(engine, "spike")
    assert (spike.step, spike.severity) == (120, "info")
    assert "it came at once" in spike.detail


def test_a_curve_that_changes_its_level_and_stays_is_one_remark() -> None:
    engine = diagnose(training(range(600), lambda at: flat(at) * (30.0 if at >= 200 else 1.0)))
    assert len(of_kind(engine, "spike")) == 1 and loud(engine) == []


def unstable(at: int) -> float:
    """Every 150 steps the loss builds up over twelve steps to a hundred times its level."""
    phase = at % 150 - 130
    return flat(at) * (1.0 + (math.exp(phase / 2.6) if 0 <= phase < 12 else 0.0))


def unstable_gradient(at: int) -> float:
    """The gradient begins to grow eight steps earlier."""
    phase = at % 150 - 122
    return 1.0 + (math.exp(phase / 3) if 0 <= phase < 20 else 0.0)


def test_spikes_that_build_up_and_come_back_are_a_warning_with_their_lead() -> None:
    engine = diagnose(training(range(700), unstable, unstable_gradient))
    assert [(kind, severity) for kind, _, severity in loud(engine)] == [("spike", "warning")]
    first = of_kind(engine, "spike")[0]
    drift = of_kind(engine, "drift")[0]
    assert drift.severity == "info" and drift.step is not None and first.step is not None
    assert first.figures["lead_steps"] == first.step - drift.step >= 4
    assert f"{first.step - drift.step} steps before" in first.detail


def burst(peak: float, rings: int, noise: float) -> Curve:
    """A loss that falls by 1 % a step, and once goes up in peaks of which each is lower."""

    def loss(at: int) -> float:
        level = 0.99**at * math.exp(noise * math.sin(7.0 * at))
        place = at - 240
        if not 0 <= place < 4 * rings:
            return level
        return level * (1 + peak * 0.7 ** (place // 4) * (0.25, 1.0, 0.4, 0.0)[place % 4])

    return loss


def drifting(at: int) -> float:
    return 1.0 + (math.exp((at - 228) / 3) if 228 <= at < 262 else 0.0)


@pytest.mark.parametrize(
    ("peak", "rings", "noise", "is_loud"),
    [
        (25.0, 5, 0.0, True),
        (8.0, 5, 0.0, False),  # a hop
        (25.0, 1, 0.0, False),  # it comes back at once
        (25.0, 5, 0.2, False),  # batches differ
    ],
)
def test_one_burst_of_a_smooth_loss(peak: float, rings: int, noise: float, is_loud: bool) -> None:
    engine = diagnose(training(range(400), burst(peak, rings, noise), drifting))
    warned = [s for s in of_kind(engine, "spike") if s.severity == "warning"]
    assert bool(warned) is is_loud
    if is_loud:
        assert "rang" in warned[0].detail and warned[0].figures["lead_steps"] >= 4


def test_a_burst_that_the_gradient_does_not_announce_is_none() -> None:
    engine = diagnose(training(range(400), burst(25.0, 5, 0.0)))
    assert not [s for s in of_kind(engine, "spike") if s.severity == "warning"]


def test_drift_is_told_before_the_loss_moves() -> None:
    engine = diagnose(training(range(131), unstable, unstable_gradient), close=False)
    assert of_kind(engine, "drift") and not of_kind(engine, "spike")


def test_nothing_is_compared_before_there_is_something_to_compare_with() -> None:
    early = WARM_UP + LAG - 2
    engine = diagnose(training(range(early + 1), lambda at: 30.0 if at == early else flat(at)))
    assert of_kind(engine, "spike") == []


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_values_that_are_missing_or_not_finite_are_no_part_of_the_band(value: float | None) -> None:
    def loss(at: int) -> float | None:
        if at % 5 == 0:
            return value
        return 20.0 if at == 151 else flat(at)

    engine = diagnose(training(range(300), loss))
    assert [s.step for s in of_kind(engine, "spike")] == [151]
    assert not of_kind(engine, "explosion")


@pytest.mark.parametrize("factor", [10.0, 1e3])
def test_growth_from_the_first_steps_is_an_explosion(factor: float) -> None:
    engine = diagnose(training(range(8), lambda at: 2.0 * factor**at, lambda at: 3.0 * factor**at))
    (kind, at, severity) = loud(engine)[-1]
    assert (kind, severity) == ("explosion", "critical") and at is not None and at <= 3
    assert engine.unrecovered() == {"explosion"}


def test_an_explosion_that_ends_in_nan_is_critical() -> None:
    losses = [0.7, 2e5, math.nan, math.nan]
    grads = [1.0, 1e8, math.nan, math.nan]
    engine = diagnose(training(range(4), lambda at: losses[at], lambda at: grads[at]))
    assert ("explosion", 1, "critical") in loud(engine)


def test_a_training_that_finds_back_has_recovered() -> None:
    def of(at: int) -> float:
        return 1e7 if 50 <= at < 55 else flat(at)

    engine = diagnose(training(range(120), of, of))
    assert ("explosion", 50, "critical") in loud(engine)
    assert engine.unrecovered() == set()


def test_a_loss_around_zero_has_no_explosion() -> None:
    """A policy loss is nearly zero first and swings later, under the same gradient."""
    engine = diagnose(
        training(range(300), lambda at: 1e-9 if at == 0 else 0.3 * math.sin(at), lambda at: 1.0)
    )
    assert loud(engine) == []
    positive = diagnose(training(range(300), lambda at: 1e-9 if at == 0 else flat(at)))
    assert loud(positive) == []


def test_other_parameters_begin_anew() -> None:
    """A fold of a cross-validation: the loss is back at its start, with another model."""
    one = [step(at, falling(at)) for at in range(300)]
    two = [step(at, falling(at - 300)) for at in range(300, 600)]
    engine = diagnose([table(0), *one, table(1), *two])
    assert of_kind(engine, "spike") == []
    same = diagnose([table(0), *one, table(0), *two])
    assert of_kind(same, "spike") != [], "the same table again is no other model"


def test_statistics_that_arrive_late_are_judged_as_well() -> None:
    records = [table()]
    for at in range(200):
        loss = 50.0 if 120 <= at < 128 else flat(at)
        records += [step(at, None, None, late=True, flags=b""), DeviceStats(at, loss=loss)]
    assert loud(diagnose(records)) == [("spike", 120, "warning")]


def test_gradients_that_were_left_out_make_no_band() -> None:
    grad = lambda at: math.nan if at % 40 == 10 else (1.0 if at < 120 else 30.0 + at)  # noqa: E731
    (found,) = of_kind(diagnose(training(range(140), flat, grad)), "drift")
    assert found.severity == "info" and math.isfinite(found.figures["grad_growth"])
    assert not of_kind(diagnose(training(range(120), flat, grad)), "drift")


def test_the_same_ratio_of_update_to_weight_is_told_once_and_a_larger_one_again() -> None:
    records = []
    for record in training(range(600), flat, flat):
        records.append(record)
        at = getattr(record, "step", None)
        if at is not None and at >= 100 and at % 10 == 0:
            ratio = {300: 0.1, 400: 0.1, 500: 0.12, 550: 0.5}.get(at, 0.01)
            item = ParameterSample("a.weight", update_ratio=ratio)
            records.append(ParameterSamples(at, 0, [item]))
    assert [found.step for found in of_kind(diagnose(records), "drift")] == [300, 550]
