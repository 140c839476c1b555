"""Causes by how weights were moved; each beside a look-alike that is not accused of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules import RULES
from tuimon.diagnose.rules.abstaining import abstain
from tuimon.model.autopsy import NOT_REPRODUCED, Autopsy
from tuimon.model.graphs import GraphSeen, LossTerm
from tuimon.model.loop import Warned
from tuimon.model.records import Batch, Facts, LayerTable, Step, Symptom
from tuimon.model.samples import (
    Activation,
    Activations,
    ParameterSample,
    ParameterSamples,
    StartingWeights,
)

GROWING = Symptom("explosion", 30, 0, "critical", "it grows")
PLATEAU = Symptom("plateau", 0, 0, "warning", "it stands", {"chance": 2.3})
NAMES = ["a.weight", "b.weight", "c.weight"]


def weights(*rms: float, fan_in: int = 100, spread: float = 1.0) -> StartingWeights:
    def column(*values: float) -> bytes:
        return np.array(values, "<f4").tobytes()

    count = len(rms)
    return StartingWeights(
        NAMES[:count], [fan_in] * count, column(*rms), column(*(4 * each for each in rms)),
        column(*[spread] * count), column(*[0.0] * count),
    )  # fmt: skip


def looks(
    *terms: LossTerm, kinds: tuple[str, ...] = (), uses: int = 1, functions: tuple[str, ...] = ()
) -> Batch:
    graph = GraphSeen(
        40, True, dict.fromkeys(kinds, 1), [("b.weight", uses)], [*terms], [*functions]
    )
    return Batch(0, 0, graph=graph)


def moved(*ratios: float) -> list[ParameterSamples]:
    return [
        ParameterSamples(step, 0, [ParameterSample("a.weight", update_ratio=ratio)])
        for step, ratio in enumerate(ratios)
    ]


def concluded(
    *records: object,
    symptom: Symptom | None = GROWING,
    losses: tuple[float, ...] = (2.0,) * 120,
    norms: tuple[float, ...] = (1.0,),
    rates: tuple[float, ...] = (0.1,),
    calls: int = 1,
    max_norm: float | None = None,
    optimizer: str = "SGD",
    more: Sequence[Symptom] = (),
    **settings: float,
) -> list[Finding]:
    """What the rules say of a run, the most certain first."""
    run = Circumstances()
    shapes = [[10, 100]] * 3
    run.see(LayerTable(0, NAMES, shapes, ["float32"] * 3, [True] * 3, [0] * 3))
    facts = Facts(optimizers=[optimizer], settings=[settings])
    run.see(facts)
    for record in records:
        run.see(record)  # type: ignore[arg-type]
    for step, loss in enumerate(losses):
        norm, rate = norms[min(step, len(norms) - 1)], rates[min(step, len(rates) - 1)]
        run.see(
            Step(step, 0, loss=loss, backward_calls=calls, grad_norm=norm, lrs=[rate],
                 norms=np.ones(3, "<f4").tobytes(), max_norm=max_norm)
        )  # fmt: skip
    evidence = Evidence([*more, symptom] if symptom else [], facts, "none", (), run)
    found = [finding for rule in RULES for finding in rule.conclude(evidence)]
    return sorted(found, key=lambda f: f.confidence, reverse=True)


def causes(*records: object, **given: Any) -> list[str]:
    return [each.cause for each in concluded(*records, **given)]


def mean(factor: float = 1.0) -> LossTerm:
    return LossTerm("MseLossBackward0", "mean", 64, factor)


def total(elements: int, factor: float = 1.0) -> LossTerm:
    return LossTerm("SumBackward0", "sum", elements, factor)


RISING = tuple(0.01 * 1.05**step for step in range(120))
WARMING = tuple(min(1.0, 0.01 * (step + 1)) for step in range(120))
RAISED = (0.1,) * 20 + (0.001,) * 8 + (0.1,) * 92

GROWTH: list[tuple[str, dict[str, object], dict[str, object]]] = [
    ("bad-init", {"records": [weights(1.0, 1.0, 1.0)]}, {"records": [weights(0.14, 0.14, 0.14)]}),
    ("bad-init", {"records": [weights(1.0, 0.05, 0.05)]}, {"records": [weights(0.2, 0.05, 0.05)]}),
    ("bad-init", {"records": [weights(20.0, 20.0, fan_in=1)]},
     {"records": [weights(1.0, 1.0, fan_in=1)]}),
    ("uninit-weights", {"records": [weights(3e12, 0.1)]}, {"records": [weights(0.1, 0.1)]}),
    ("loss-scaling", {"records": [looks(total(512))]}, {"records": [looks(total(512, 1 / 512))]}),
    ("loss-scaling", {"records": [looks(mean())], "calls": 32},
     {"records": [looks(mean(1 / 32))], "calls": 32}),
    ("loss-scaling", {"records": [looks(mean(), mean(1e4))]}, {"records": [looks(mean(10.0))]}),
    ("opt-dynamics", {"momentum": 0.999}, {"momentum": 0.9}),
    ("opt-dynamics", {"beta1": 0.99, "beta2": 0.5, "optimizer": "Adam"},
     {"beta1": 0.9, "beta2": 0.95, "optimizer": "Adam"}),
    ("lr-schedule", {"rates": RISING}, {"rates": WARMING}),
    ("lr-schedule", {"rates": RAISED}, {"rates": (0.1,)}),
    ("grad-explode", {"records": [weights(0.1, 0.1), looks(uses=50)], "norms": (1.0, 2.0, 3e6)},
     {"records": [weights(0.1, 0.1), looks(uses=2)], "norms": (1.0, 2.0, 3e6)}),
    ("grad-explode", {"records": [weights(0.1, 0.1), looks(uses=50)], "norms": (1.0, 2.0, 3e6)},
     {"records": [weights(0.1, 0.1), looks(uses=50)], "norms": (1.0, 3e6), "max_norm": 1.0}),
    ("grad-explode", {"records": [weights(0.1, 0.1), looks(uses=50)], "norms": (1e7,)},
     {"records": [weights(0.1, 0.1), looks(uses=2)], "norms": (1e5,)}),
]  # fmt: skip


def said(case: dict[str, object], **rest: object) -> list[str]:
    given = dict(case)
    return causes(*given.pop("records", ()), **given, **rest)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(("cause", "case", "alike"), GROWTH)
def test_growth_is_laid_to_what_made_the_step_too_long(cause, case, alike):
    assert said(case)[0] == cause
    assert said(alike)[0] == "lr-too-high"


STANDS: list[tuple[str, dict[str, object], dict[str, object]]] = [
    ("bad-init", {"records": [weights(0.0, 0.0, 0.0, spread=0.0)]},
     {"records": [weights(0.1, 0.1, 0.1)]}),
    ("bad-init", {"records": [weights(1e-3, 1e-3, 1e-3)]}, {"records": [weights(0.06, 0.1, 0.1)]}),
    ("opt-dynamics", {"optimizer": "AdamW", "eps": 1.0}, {"optimizer": "AdamW", "eps": 1e-8}),
    ("opt-dynamics", {"weight_decay": 1.0}, {"weight_decay": 0.01}),
    ("loss-scaling", {"records": [looks(mean(1 / 256))]},
     {"records": [looks(mean(1 / 256))], "optimizer": "Adam"}),
    ("lr-too-high", {"records": moved(1.5, 0.2)}, {"records": moved(0.05, 0.02)}),
    ("lr-too-high", {"losses": (2.0, 90.0, 40.0, 20.0) + (1.2,) * 120, "records": moved(0.1)},
     {"losses": (2.0, 90.0, 3.0) + (1.2,) * 120, "records": moved(0.1)}),
    ("lr-too-high", {"losses": (2.0, 2.0, 40.0, 40.0, 40.0) + (2.3,) * 120},
     {"losses": (2.0, 2.1, 2.5) + (2.0,) * 120}),
    ("lr-too-high", {"losses": (0.2, *(1.0,) * 120), "records": moved(0.4)},
     {"losses": (0.2, *(1.0,) * 120), "records": moved(0.01)}),
    ("lr-schedule", {"records": moved(1e-7, 1e-7), "initial_lr": 0.1},
     {"records": moved(1e-3, 1e-3), "initial_lr": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize("symptom", [PLATEAU, None])
@pytest.mark.parametrize(("cause", "case", "alike"), STANDS)
def test_a_loss_that_stands_names_why(cause, case, alike, symptom):
    assert said(case, symptom=symptom)[0] == cause
    assert cause not in said(alike, symptom=symptom)


# All equal weights learn something, and are an oversight all the same.
@pytest.mark.parametrize(("cause", "case", "alike"), STANDS[1:])
def test_a_training_that_learns_is_accused_of_nothing(cause, case, alike):
    learns = tuple(2.0 * 0.98**step for step in range(150))
    assert said(case | {"losses": learns}, symptom=None) == []


def test_what_was_thrown_up_and_has_not_come_back_took_bold_steps():
    high = Symptom("spike", 40, 0, "info", "it jumped", {"times": 40.0})
    off = Activation("a", 1, 512, zero_frac=0.94, silent_frac=0.8, kind="ReLU")
    worse = (1.5,) * 40 + (60.0,) + (1.8,) * 120
    case = {"records": [*moved(0.2), Activations(34, [off])], "losses": worse, "more": [high]}
    assert said(case, symptom=PLATEAU)[:2] == ["lr-too-high", "dead-relu"]
    # Small steps, a lower hop, and a loss that is back are none of that.
    low = Symptom("spike", 40, 0, "info", "it jumped", {"times": 5.0})
    back = (1.5,) * 40 + (60.0,) + (1.4,) * 120
    for alike in ({"records": moved(0.01)}, {"more": [low]}, {"losses": back}):
        assert not {"lr-too-high", "dead-relu"} & {*said(case | alike, symptom=PLATEAU)}, alike


def test_attention_without_warm_up_stands():
    deep = Batch(0, 0, graph=GraphSeen(900, kinds={"Softmax": 12, "NativeLayerNorm": 24}))
    shallow = Batch(0, 0, graph=GraphSeen(90, kinds={"Softmax": 1}))
    given = {"symptom": PLATEAU, "optimizer": "AdamW"}
    assert causes(deep, **given)[0] == "lr-schedule"
    assert "lr-schedule" not in causes(deep, **given, rates=WARMING)
    assert "lr-schedule" not in causes(deep, symptom=PLATEAU, optimizer="SGD")
    assert "lr-schedule" not in causes(shallow, **given)


def test_what_is_not_finite_before_any_update_is_no_matter_of_the_rate():
    lost = Symptom("non-finite-loss", 0, 0, "critical", "loss is Inf")
    names = [f"{at}.weight" for at in range(20)]
    column = np.full(20, 0.14, "<f4").tobytes()
    deep = StartingWeights(names, [100] * 20, column, column, column, b"\0" * 80)
    run = Circumstances()
    for record in (deep, Step(0, 0, loss=float("inf"), lrs=[0.1])):
        run.see(record)
    evidence = Evidence([lost, GROWING], None, "none", (), run)
    found = {f.cause for rule in RULES for f in rule.conclude(evidence)}
    assert "grad-explode" in found and "lr-too-high" not in found


def unrolled(nodes: int) -> Batch:
    return Batch(0, 0, graph=GraphSeen(nodes, True, {"Mul": nodes}, [("rates", 1)]))


def test_an_unrolled_computation_is_recurrent_and_a_deep_net_is_not():
    ends = (2.0, 3.0, *(float("nan"),) * 20)
    known = {"losses": ends, "norms": (1.0, 2.0, float("nan"))}
    assert causes(weights(0.1), unrolled(900), **known)[0] == "grad-explode"
    assert causes(weights(0.1, 0.1, 0.1), unrolled(80), **known)[0] == "lr-too-high"


def test_a_long_time_without_gates_fades():
    fades = looks(uses=60)
    assert causes(fades, weights(0.1, 0.1), symptom=None) == ["grad-vanish"]
    assert causes(looks(uses=6), weights(0.1, 0.1), symptom=None) == []


@pytest.mark.parametrize(("figures", "first"), [({}, "data-outlier"), ({"lead_steps": 9.0}, "")])
def test_a_jump_that_came_at_once_and_went_is_data(figures, first):
    jumped = Symptom("spike", 30, 0, "info", "it jumped", {"times": 7000.0, **figures})
    run = Circumstances()
    for step in range(100):
        loss = 60.0 if 30 <= step < 34 else 2.0 * 0.95**step
        run.see(Step(step, 0, loss=loss, grad_norm=1.0, lrs=[0.1]))
    evidence = Evidence([GROWING, jumped], None, "none", (), run)
    found = [f for rule in RULES for f in rule.conclude(evidence)]
    assert max(found, key=lambda f: f.confidence).cause == (first or "lr-too-high")


@pytest.mark.parametrize(("factor", "first"), [(1.0, "data-outlier"), (1.1, "")])
def test_a_jump_while_the_rate_climbs_and_climbs_is_not_laid_to_the_data(factor, first):
    jumped = Symptom("spike", 30, 0, "info", "it jumped", {"times": 7000.0})
    run = Circumstances()
    for step in range(34):
        loss = 6e4 if step == 30 else 2.0 * 0.95**step
        run.see(Step(step, 0, loss=loss, grad_norm=1.0, lrs=[0.1 * factor**step]))
    evidence = Evidence([GROWING, jumped], None, "none", (), run)
    found = [f for rule in RULES for f in rule.conclude(evidence)]
    accused = {f.cause for f in found}
    assert ("data-outlier" in accused) is bool(first), found


def test_a_jump_after_others_that_never_came_back_is_a_step_that_is_too_long():
    """An outlier strikes out of the blue; where the loss had jumped before, and then ends, no."""
    jumped = Symptom("spike", 30, 0, "info", "it jumped", {"times": 7000.0})
    before = Symptom("spike", 26, 0, "info", "it jumped", {"times": 40.0})
    ended = Symptom("non-finite-loss", 33, 0, "critical", "loss is NaN")
    firsts = {}
    for name, more in (
        ("rings and ends", [before, ended]),
        ("ends", [ended]),
        ("rings and returns", [before]),
    ):
        run = Circumstances()
        for step in range(31):
            loss = 6e4 if step == 30 else 2.0 * 0.95**step
            run.see(Step(step, 0, loss=loss, grad_norm=1.0, lrs=[0.1]))
        evidence = Evidence([GROWING, jumped, *more], None, "none", (), run)
        found = [f for rule in RULES for f in rule.conclude(evidence)]
        best = max(found, key=lambda f: f.confidence)
        firsts[name] = best.cause
        if best.cause == "data-outlier":
            assert ("came back" in best.evidence[0]) is (name == "rings and returns")
    assert firsts == {
        "rings and ends": "lr-too-high",
        "ends": "data-outlier",
        "rings and returns": "data-outlier",
    }


def test_waves_of_an_adaptive_optimizer_are_a_remark_and_noise_is_not():
    def wavy(size: float, wave: int) -> tuple[float, ...]:
        return tuple(0.01 * 2 ** (size * np.sin(6.3 * step / wave)) for step in range(300))

    given = {"symptom": None, "optimizer": "Adam"}
    assert causes(losses=(1.0, *wavy(1.2, 20)), **given) == ["opt-dynamics"]
    falls = tuple(loss * 0.98**step for step, loss in enumerate(wavy(1.2, 20)))
    noise = (1.0, *(np.random.default_rng(0).lognormal(-4, 0.8, 300)))
    for alike in ((1.0, *wavy(0.3, 20)), (1.0, *wavy(1.2, 2)), (1.0, *falls), noise):
        assert causes(losses=alike, **given) == []
    assert causes(losses=(1.0, *wavy(1.2, 20)), symptom=None) == []


ROOT = ("LinalgVectorNorm", "Div")


def test_a_leap_of_the_gradient_without_one_of_the_loss_is_a_derivative_near_zero():
    norms = (1.0,) * 40 + (1e9,)
    learns = tuple(2.0 * 0.98**step for step in range(41))
    found = causes(looks(kinds=ROOT), symptom=None, losses=learns, norms=norms)
    assert found[0] == "div-zero"
    assert causes(looks(kinds=("Sqrt",)), symptom=None, losses=learns, norms=norms) == [
        "sqrt-norm-zero"
    ]
    for alike in (
        {"norms": (1.0,) * 40 + (500.0,)},
        {"norms": norms, "max_norm": 1.0},
        {"norms": norms, "losses": (*learns[:-1], 300.0)},
    ):
        given = {"losses": learns, **alike}
        assert causes(looks(kinds=ROOT), symptom=None, **given) == []


def test_a_huge_gradient_at_the_first_update():
    learns = tuple(2.0 * 0.98**step for step in range(41))
    found = causes(looks(kinds=ROOT), symptom=None, losses=learns, norms=(1e12, 1.0))
    assert found[0] == "div-zero"
    assert causes(looks(kinds=ROOT), symptom=None, losses=learns, norms=(1e3, 1.0)) == []


def test_what_nothing_explains_is_unknown_and_says_what_would_tell():
    bad = Symptom("non-finite-loss", 5, 0, "critical", "loss is NaN")
    autopsy = Autopsy(5, 0, trigger="non-finite-loss", verdict=NOT_REPRODUCED)
    unknown = abstain(Evidence([bad], None, "none", [autopsy]), [])
    assert unknown is not None and (unknown.cause, unknown.status) == ("unknown", "unknown")
    assert unknown.confidence < 0.5 and "mon.forward" in unknown.remedy.text
    alone = abstain(Evidence([bad], None, "none"), [])
    assert alone is not None and "--autopsy full" in alone.remedy.text
    remark = Symptom("plateau", 5, 0, "info", "flat")
    assert abstain(Evidence([remark], None, "none"), []) is None
    assert abstain(Evidence([bad], None, "none"), [unknown]) is not None


def decayed(gamma: float, every: int = 1) -> tuple[float, ...]:
    return tuple(0.1 * gamma ** (step // every) for step in range(200))


FLAT = tuple(2.0 - 0.02 * min(step, 20) for step in range(200))
FALLS = tuple(2.0 * 0.98**step for step in range(200))


def test_a_rate_that_is_spent_before_the_training_has_come_anywhere():
    for rates in (decayed(0.6), decayed(0.1, 5), (0.1,) * 20 + (1e-5,) * 180):
        assert set(causes(symptom=None, losses=FLAT, rates=rates)) == {"lr-schedule"}
    for rates in (decayed(0.1, 60), decayed(0.965), (0.1,)):
        assert "lr-schedule" not in causes(symptom=None, losses=FLAT, rates=rates)


def test_a_rate_below_zero():
    rates = tuple(0.1 * (1 - step / 100) for step in range(200))
    assert causes(symptom=None, losses=FALLS, rates=rates) == ["lr-schedule"]


def test_a_scheduler_that_steps_first():
    warned = Warned(3, "scheduler-order", "Detected call of `lr_scheduler.step()` before ...")
    assert causes(warned, symptom=None, losses=FALLS) == ["lr-schedule"]
    scaled = Facts(optimizers=["SGD"], scaler="GradScaler")
    assert causes(warned, scaled, symptom=None, losses=FALLS) == []


def test_a_training_that_lost_what_it_had_learned():
    lost, steep = FALLS[:100] + (1.9,) * 100, (1.0,) * 100 + (40.0,) * 100
    assert causes(symptom=None, losses=lost, norms=steep) == ["lr-too-high"]
    rising = tuple(0.01 * 1.03**step for step in range(200))
    assert causes(symptom=None, losses=lost, norms=steep, rates=rising)[0] == "lr-schedule"
    spike = FALLS[:100] + (1.9,) * 10 + FALLS[100:]
    game = FALLS[:100] + tuple(FALLS[99] * 1.025**step for step in range(100))
    for alike in (spike, game, FALLS[:100] + (0.5,) * 100):
        assert causes(symptom=None, losses=alike, norms=steep) == []
    assert causes(symptom=None, losses=lost) == []


SPENT_EARLY = tuple(0.5**step for step in range(120))


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ({"rates": RISING}, ["gamma=0.9524", "min(1.05**step"]),
        ({"rates": tuple(0.01 * (step + 1) for step in range(120))}, ["OneCycleLR", "total_steps"]),
        ({"rates": RAISED}, ["milestones=[28], gamma=0.1", "it was 100"]),
        ({"rates": SPENT_EARLY, "symptom": None}, ["T_max=total_steps"]),
        ({"rates": (0.1,) * 60 + (-0.1,) * 60, "symptom": None}, ["max(0.0"]),
    ],
)
def test_the_remedy_fits_how_the_rate_went(given: dict[str, Any], there: list[str]) -> None:
    found = next(each for each in concluded(**given) if each.cause == "lr-schedule")
    assert all(words in found.remedy.code for words in there), found.remedy
    assert "warmup_steps" not in found.remedy.code
    compile(found.remedy.code, "remedy", "exec")
