"""Trainings that learn nothing, on synthetic records: what tells each from its healthy twin."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.unit.diagnose.series import (
    NAMES,
    classes,
    diagnose,
    falling,
    loud,
    noisy,
    of_kind,
    step,
    table,
)
from tuimon.diagnose.amp import NONE
from tuimon.diagnose.engine import Engine
from tuimon.diagnose.outcome import outcome
from tuimon.model.batches import LossFacts, LossSeen, TensorSummary
from tuimon.model.records import NO_GRAD, AnyRecord, Batch, Scalars
from tuimon.model.samples import Activation, Activations, ParameterSample, ParameterSamples

LN10 = math.log(10)
LOST = "stalled"


def ended(engine: Engine) -> str:
    return outcome(
        exit_kind="ok",
        exit_code=0,
        symptoms=engine.symptoms,
        findings=engine.findings,
        unrecovered=engine.unrecovered(),
        amp_verdict=NONE,
    )


def run(
    steps: int, loss: Callable[[int], float | None], each: Callable[[int], dict[str, object]]
) -> list[AnyRecord]:
    return [table(), *(step(at, loss(at), **each(at)) for at in range(steps))]


def chance(at: int) -> float:
    value = noisy(lambda _: LN10, 0.01)(at)
    assert value is not None
    return value


def as_usual(at: int) -> dict[str, object]:
    return {}


# --- plateau --------------------------------------------------------------------------------------


def test_a_loss_that_stays_at_chance_is_a_plateau_when_the_run_ends() -> None:
    records = [classes(0), *run(200, chance, as_usual)]
    assert loud(diagnose(records, close=False)) == [], "a hard task may still be learned"
    engine = diagnose(records)
    assert loud(engine) == [("plateau", 0, "warning")]
    assert ended(engine) == LOST
    warned = of_kind(engine, "plateau")[-1]
    assert warned.figures["chance"] == pytest.approx(LN10)
    assert "ln 10 = 2.303" in warned.detail


def test_a_run_that_goes_on_is_told_after_a_thousand_updates() -> None:
    records = [classes(0), *run(1100, chance, as_usual)]
    assert loud(diagnose(records, close=False)) == [("plateau", 0, "warning")]


@pytest.mark.parametrize(
    "loss",
    [
        falling,
        lambda at: LN10 if at < 600 else 0.2,  # learned all of a sudden
        lambda at: max(0.9, LN10 - at / 100),  # a floor of noisy labels
        lambda at: 0.9 * LN10,
    ],
)
def test_what_is_better_than_chance_is_no_plateau(loss: Callable[[int], float]) -> None:
    assert loud(diagnose([classes(0), *run(900, loss, as_usual)])) == []


def test_a_loss_that_was_thrown_up_and_stays_a_little_worse_is_told() -> None:
    def worse(top: float, level: float) -> list[tuple[str, int | None, str]]:
        curve = lambda at: top if at == 100 else LN10 if at < 100 else level  # noqa: E731
        return loud(diagnose([classes(0), *run(300, curve, as_usual)]))

    assert worse(50.0, 1.1 * LN10) == [("plateau", 0, "warning")]
    assert worse(5.0, 1.25 * LN10) == [("plateau", 0, "warning")]
    assert worse(50.0, 0.5 * LN10) == []


def test_a_short_run_and_one_that_is_still_warming_up_are_not_judged() -> None:
    assert loud(diagnose([classes(0), *run(90, chance, as_usual)])) == []
    warming = run(400, chance, lambda at: {"lrs": [1e-6 * 1.02**at]})
    assert len(of_kind(diagnose([classes(0), *warming]), "plateau")) == 0


def test_a_bad_beginning_that_falls_steadily_is_on_its_way() -> None:
    slow = [classes(0), *run(200, lambda at: chance(at) + 0.35 - 0.0017 * at, as_usual)]
    assert loud(diagnose(slow)) == []
    arrived = run(400, lambda at: chance(at) + max(0.0, 0.3 - 0.01 * at), as_usual)
    assert loud(diagnose([classes(0), *arrived])) == [("plateau", 0, "warning")]


def test_one_side_of_a_game_is_not_accused() -> None:
    """The loss of a discriminator stays at ln 2 when all is well."""
    records = [classes(0), *run(400, chance, as_usual)]
    records.insert(5, step(0, 1.0, optimizer=1))
    assert loud(diagnose(records)) == []


def test_a_loss_without_known_chance_is_a_remark_at_most() -> None:
    engine = diagnose(run(600, chance, as_usual))
    assert loud(engine) == [] and of_kind(engine, "plateau")


def test_the_variance_of_the_targets_is_chance_for_squares() -> None:
    facts = LossFacts("MseLossBackward0", "mean")
    target = TensorSummary("target", [64], "float32", looked_at=64, mean=0.5, std=2.0)
    batch = Batch(0, 0, losses=[LossSeen(facts, TensorSummary("p", [64, 1], "float32"), target)])
    stuck = diagnose([batch, *run(300, lambda at: 3.95, as_usual)])
    assert loud(stuck) == [("plateau", 0, "warning")]
    assert loud(diagnose([batch, *run(300, lambda at: 4.0 * falling(at), as_usual)])) == []


# --- frozen parameters ----------------------------------------------------------------------------


def test_gradients_that_are_cleared_before_the_step() -> None:
    flags = {"flags": bytes([NO_GRAD]) * len(NAMES), "grad": 0.0}
    engine = diagnose(run(40, lambda at: 0.68, lambda at: dict(flags)))
    assert loud(engine) == [("frozen-parameters", 0, "warning")]
    assert ended(engine) == LOST
    now_and_then = run(300, falling, lambda at: dict(flags) if at % 8 else {})
    assert loud(diagnose(now_and_then)) == []


def test_gradients_of_exactly_zero_while_something_is_lost() -> None:
    zero = {"grad": 0.0}
    engine = diagnose(run(60, lambda at: 4.66e-7, lambda at: dict(zero)))
    assert loud(engine) == [("frozen-parameters", 0, "warning")]
    done = run(
        300, lambda at: falling(at) if at < 200 else 0.0, lambda at: zero if at > 200 else {}
    )
    assert loud(diagnose(done)) == [], "nothing is lost, so nothing is left to learn"


def test_a_learning_rate_of_zero_from_the_start_but_not_at_the_end() -> None:
    engine = diagnose(run(80, lambda at: 0.7, lambda at: {"lrs": [0.0]}))
    assert ("frozen-parameters", 0, "warning") in loud(engine)
    ending = run(400, falling, lambda at: {"lrs": [0.1 if at < 350 else 0.0]})
    assert loud(diagnose(ending)) == []
    assert of_kind(diagnose(ending), "frozen-parameters")[0].severity == "info"
    first_only = run(300, falling, lambda at: {"lrs": [0.1 * min(1, at / 100)]})
    assert of_kind(diagnose(first_only), "frozen-parameters") == []


def starved(at: int) -> dict[str, object]:
    return {"flags": bytes([NO_GRAD] * 4 + [0, 0]), "norms": [0.0] * 4 + [1.0, 1.0]}


def test_most_of_a_model_without_any_gradient() -> None:
    engine = diagnose(run(120, lambda at: 1.6, starved))
    assert loud(engine) == [("frozen-parameters", 0, "warning")]
    assert of_kind(engine, "frozen-parameters")[0].figures["share"] == pytest.approx(4 / 6)
    learns = diagnose(run(400, falling, starved))
    assert loud(learns) == [] and of_kind(learns, "frozen-parameters")


def samples(at: int, changed: float) -> ParameterSamples:
    item = ParameterSample("0.weight", 0.1, 1.0, 1.0, 1e-4, 128, changed)
    return ParameterSamples(at, 0, [item])


@pytest.mark.parametrize(
    ("dtype", "changed", "loss", "expected"),
    [
        ("bfloat16", 0.08, chance, "warning"),
        ("bfloat16", 0.9, chance, None),
        ("bfloat16", 0.08, falling, "info"),
        ("float32", 0.08, chance, None),
        ("float32", 0.0, chance, "warning"),
    ],
)
def test_updates_that_are_rounded_away(
    dtype: str, changed: float, loss: Callable[[int], float], expected: str | None
) -> None:
    records: list[AnyRecord] = [table(0, dtype)]
    for at in range(400):
        records.append(step(at, loss(at)))
        if at in (2, 18, 34, 300):
            records.append(samples(at, changed))
    found = of_kind(diagnose(records), "frozen-parameters")
    assert (found[0].severity if found else None) == expected


def stops(at: int) -> float:
    """A loss that falls by two thirds, and no further."""
    return 40.0 + 80.0 * math.exp(-at / 60)


@pytest.mark.parametrize(
    ("shares", "norms", "rates", "loss", "expected"),
    [
        ((0.4, 0.01), (30.0, 30.0), (0.1, 0.1), stops, "warning"),
        ((0.4, 0.3), (30.0, 30.0), (0.1, 0.1), stops, None),  # moved as ever, by noise
        ((0.2, 0.01), (30.0, 2.0), (0.1, 0.1), stops, "info"),  # arrived: its gradient is gone
        ((0.2, 0.01), (30.0, 30.0), (0.1, 1e-4), stops, "info"),  # a schedule has ended low
        ((0.2, 0.01), (30.0, 30.0), (0.1, 0.1), falling, "info"),  # all that there was is learned
        ((0.1, 0.1), (30.0, 30.0), (0.1, 0.1), stops, "info"),  # few rows of a table at a time
    ],
)
def test_updates_that_are_rounded_away_once_weights_have_grown(
    shares: tuple[float, float],
    norms: tuple[float, float],
    rates: tuple[float, float],
    loss: Callable[[int], float],
    expected: str | None,
) -> None:
    records: list[AnyRecord] = [table(0, "bfloat16")]
    for at in range(800):
        late = at >= 200
        records.append(step(at, loss(at), norms[late], lrs=[rates[late]]))
        if at % 50 == 10:
            records.append(samples(at, shares[late]))
    found = of_kind(diagnose(records), "frozen-parameters")
    assert (found[-1].severity if found else None) == expected


# --- layers ---------------------------------------------------------------------------------------


def fading(ratio: float) -> Callable[[int], dict[str, object]]:
    norms = [0.3 * ratio, 0.1, 0.3 * math.sqrt(ratio), 0.1, 0.3, 0.1]
    deep = {"norms": norms}
    return lambda at: deep


def test_gradients_that_fade_are_told_where_nothing_is_learned() -> None:
    names = [f"{i}.weight" for i in range(6)]
    deep = table().__class__(0, names, [[8, 8]] * 6, ["float32"] * 6, [True] * 6, [0] * 6)
    norms = [0.3 * 10.0 ** -(5 - i) for i in range(6)]

    def of(loss: Callable[[int], float]) -> Engine:
        steps = [step(at, loss(at), norms=norms) for at in range(350)]
        return diagnose([deep, classes(0), *steps])

    stuck = of(chance)
    assert ("vanishing-gradient", 0, "warning") in loud(stuck)
    assert ("slow-progress", 0, "warning") in loud(stuck) and ended(stuck) == LOST
    learns = of(falling)
    assert loud(learns) == [] and of_kind(learns, "vanishing-gradient")


def rectifier(at: int, silent: float, kind: str = "ReLU") -> Activations:
    item = Activation("1", 1, 512, 0.0, 0.0, 0.0, silent, kind=kind, silent_frac=silent)
    return Activations(at, [item])


@pytest.mark.parametrize(
    ("silent", "kind", "loss", "expected"),
    [
        (1.0, "ReLU", chance, "warning"),
        (1.0, "ReLU", falling, "info"),
        (0.95, "ReLU", chance, "info"),
        (0.5, "ReLU", chance, None),
        (1.0, "Linear", chance, None),  # a branch that begins at zero
    ],
)
def test_layers_that_never_answer(
    silent: float, kind: str, loss: Callable[[int], float], expected: str | None
) -> None:
    records: list[AnyRecord] = [table()]
    for at in range(200):
        records.append(step(at, loss(at)))
        if at in (120, 160):
            records.append(rectifier(at, silent, kind))
    found = of_kind(diagnose(records), "dead-units")
    assert (found[0].severity if found else None) == expected


def test_weights_without_a_gradient_for_long_are_dead_as_well() -> None:
    dead = {"norms": [0.0, 0.0, 0.0, 0.0, 0.2, 0.3]}
    engine = diagnose(run(150, chance, lambda at: dict(dead)))
    assert ("dead-units", 0, "warning") in loud(engine)
    awake = run(150, chance, lambda at: dict(dead) if at % 20 else {})
    assert of_kind(diagnose(awake), "dead-units") == []


# --- outputs and evaluations ----------------------------------------------------------------------


def probabilities(at: int, ones: int, count: int = 16, low: float = 0.0) -> Batch:
    mean = ones / count
    std = math.sqrt(mean * (1 - mean)) - (0.0 if low == 0.0 else 0.01)
    outputs = TensorSummary(
        "prediction", [count, 1], "float32", looked_at=count, low=low, high=1.0, mean=mean, std=std
    )
    facts = LossFacts("BinaryCrossEntropyBackward0", "mean")
    return Batch(at, 0, losses=[LossSeen(facts, outputs)])


@pytest.mark.parametrize(
    ("loss", "low", "expected"), [(50.0, 0.0, "warning"), (0.001, 0.0, "info"), (50.0, 0.1, None)]
)
def test_probabilities_that_are_all_zero_or_one(
    loss: float, low: float, expected: str | None
) -> None:
    records: list[AnyRecord] = [table()]
    for at in range(40):
        records.append(step(at, 0.7 if at < 3 else loss))
        if at in (18, 34):
            records.append(probabilities(at, 7, low=low))
    found = of_kind(diagnose(records), "saturated-output")
    assert (found[0].severity if found else None) == expected


def test_an_evaluation_that_leaves_its_best_or_is_not_finite() -> None:
    records: list[AnyRecord] = run(100, falling, as_usual)
    values = [1.0, 0.8, 0.6, *[0.9] * 6]
    risen = [Scalars(at, {"val/loss": value}) for at, value in enumerate(values)]
    engine = diagnose([*records, *risen])
    assert [s.severity for s in of_kind(engine, "eval-gap")] == ["info"]
    broken = [Scalars(99, {"val_loss": math.nan})] * 2
    assert ("eval-gap", 99, "warning") in loud(diagnose([*records, *broken]))
    once = [Scalars(99, {"val_loss": math.nan}), Scalars(99, {"interval/loss": math.nan})]
    assert loud(diagnose([*records, *once])) == []
