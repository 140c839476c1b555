"""Causes in how a loop puts its parts together, each beside a healthy look-alike."""

from __future__ import annotations

import pytest
from msgspec import structs

from tests.unit.diagnose.test_silent_rules import active, batch, causes, symptom, tensor
from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.rules import RULES
from tuimon.model.autopsy import (
    BACKWARD,
    NOT_REPRODUCED,
    OPERATION,
    Autopsy,
    OpSite,
    TensorNote,
)
from tuimon.model.batches import LossFacts, LossSeen, TensorSummary
from tuimon.model.loop import LoopCalls, NormLayer, NormLayers, RankState, Reach, StateLoaded
from tuimon.model.records import NAN, NORM_OVERFLOW, BadTensor, Batch, LayerTable, Step
from tuimon.model.samples import ParameterSample, ParameterSamples

PLATEAU = symptom("plateau")


def trained(*records: object, losses: list[float] | None = None, **fields: object) -> Circumstances:
    """A training of an Adam that learns well, with these records beside it."""
    found = Circumstances()
    for record in records:
        found.see(record)
    for step, loss in enumerate(losses or [2.0 * 0.97**at for at in range(120)]):
        settings: dict[str, object] = {"grad_norm": 1.0, "lrs": [0.01], **fields}
        found.see(Step(step, 0, loss=loss, backward_calls=1, **settings))
    return found


def stuck(*records: object) -> Circumstances:
    return trained(*records, losses=[2.0] * 120)


def told(run: Circumstances, *symptoms: object) -> list[str]:
    return causes(run, *symptoms, optimizer="Adam")


CALLS = LoopCalls(looked=60, train_updates=120)


@pytest.mark.parametrize("name", ["uncleared", "emptied", "discarded"])
def test_gradients_that_are_not_what_the_update_needs(name: str) -> None:
    always = LoopCalls(looked=60, first={name: 1}, **{name: 59})
    seldom = LoopCalls(looked=60, first={name: 1}, **{name: 4})
    assert told(trained(always)) == ["zero-grad"]
    assert told(trained(seldom)) == told(trained(CALLS)) == []


def test_parameters_of_another_model() -> None:
    reach = Reach(0, owned=4, owned_elements=90, unowned=4, unowned_elements=90, orphans=4)
    unreached = LoopCalls(looked=60, unreached=60)
    assert told(stuck(reach, unreached), symptom("frozen-parameters", missing_row=10.0)) == [
        "params-stuck",
        "params-stuck",
    ]
    assert told(trained(replace_reach(reach, late=["head.weight"], orphans=0))) == ["params-stuck"]
    assert told(trained(replace_reach(reach, hidden=["blocks[0].weight"]))) == ["params-stuck"]


def replace_reach(reach: Reach, **fields: object) -> Reach:
    values = {name: getattr(reach, name) for name in reach.__struct_fields__}
    return Reach(**{**values, **fields})


def test_a_part_that_is_trained_on_purpose_is_none() -> None:
    head = Reach(0, owned=2, owned_elements=10, reached=2, unowned=4, unowned_elements=900)
    named = replace_reach(head, unowned_names=["body.weight"])
    frozen = replace_reach(head, unowned=0, frozen_elements=9000)
    assert told(trained(named)) == told(trained(frozen)) == []
    assert told(stuck(named)) == told(stuck(frozen)) == ["params-stuck"]


TABLE = LayerTable(
    0, ["body", "head"], [[30, 10], [10, 4]], ["float32"] * 2, [True] * 2, [0, 0]
)  # fmt: skip


def starved(*records: object) -> Circumstances:
    return trained(TABLE, *records, norms=bytes(8), flags=bytes([8, 0]))


def test_most_of_a_model_without_a_gradient() -> None:
    assert told(starved()) == ["params-stuck"]
    whole = trained(TABLE, norms=bytes(8), flags=bytes([0, 0]))
    assert told(whole) == []


def test_weights_that_follow_others_need_no_gradient() -> None:
    samples = [ParameterSamples(0, 0, [ParameterSample("body", None, size)]) for size in (1.0, 1.1)]
    assert told(starved(*samples)) == []


def seen(op: str, low: float, high: float, **fields: object) -> Batch:
    facts = LossFacts(op, "mean", classes=fields.pop("classes", None), **fields)  # type: ignore[arg-type]
    shape = [32, 4]
    prediction = TensorSummary("prediction", shape, "float32", looked_at=128, low=low, high=high)
    return batch(losses=(LossSeen(facts, prediction, tensor(0, 1, 0.3)),))


MISUSED = [
    (seen("NllLossBackward0", -3.0, 4.0), seen("NllLossBackward0", -9.0, -0.01)),
    (seen("KlDivBackward0", 0.0, 0.9), seen("KlDivBackward0", -9.0, 0.0)),
    (
        seen("NllLossBackward0", -9.0, 0.0, axis=0, class_axis=1),
        seen("NllLossBackward0", -9.0, 0.0, axis=1, class_axis=1),
    ),
    (seen("NllLossBackward0", 0.0, 0.0, classes=1), seen("NllLossBackward0", -9.0, 0.0, classes=2)),
    (
        seen("BinaryCrossEntropyBackward0", 0.0, 1.0, is_swapped=True),
        seen("BinaryCrossEntropyBackward0", 0.0, 1.0),
    ),
    (
        seen("NllLossBackward0", -9.0, 0.0, above=["LogSoftmaxBackward0", "SoftmaxBackward0"]),
        seen(
            "NllLossBackward0",
            -9.0,
            0.0,
            above=["LogSoftmaxBackward0", "BmmBackward0", "SoftmaxBackward0"],
        ),
    ),
]


@pytest.mark.parametrize(("wrong", "right"), MISUSED)
def test_a_loss_that_gets_what_another_expects(wrong: Batch, right: Batch) -> None:
    assert told(trained(wrong)) == ["loss-api"]
    assert told(trained(right)) == []


def test_a_column_against_a_row() -> None:
    facts = LossFacts("SubBackward0")
    square = TensorSummary("prediction", [32, 32], "", why_not="not kept")
    crossed = LossSeen(facts, square, spread=[[32, 1], [32]])
    pairs = LossSeen(facts, square, spread=[[32, 1], [1, 32]])
    assert told(trained(batch(losses=(crossed,)))) == ["loss-api"]
    assert told(trained(batch(losses=(pairs,)))) == []


def test_targets_outside_of_what_a_loss_expects() -> None:
    facts = LossFacts("BinaryCrossEntropyWithLogitsBackward0", "mean")
    masks = LossSeen(facts, tensor(-1, 1, 1), tensor(0, 255, 90), outside=40)
    smooth = LossSeen(facts, tensor(-1, 1, 1), tensor(0.1, 0.9, 0.3), outside=0)
    assert told(trained(batch(losses=(masks,)))) == ["label-range"]
    assert told(trained(batch(losses=(smooth,)))) == []


def jump(size: float) -> list[object]:
    usual = [Batch(step, 0, "first", [tensor(-4, 4, 1)]) for step in range(3)]
    return [*usual, Batch(50, 0, "jump", [tensor(-4, size, 1)])]


def test_a_batch_unlike_all_others() -> None:
    spike = symptom("spike", "info", 50)
    assert told(trained(*jump(3e4)), spike) == ["data-outlier"]
    assert told(trained(*jump(3e4))) == told(trained(*jump(40.0)), spike) == []


@pytest.mark.parametrize(("std", "causes"), [(30.0, ["data-outlier"]), (9.0, [])])
def test_a_batch_that_is_larger_altogether(std: float, causes: list[str]) -> None:
    """Twenty times the largest value is a heavy tail, unless the whole batch is so wide."""
    *usual, _ = jump(0.0)
    spike = symptom("spike", "info", 50)
    assert told(trained(*usual, Batch(50, 0, "jump", [tensor(-84, 86, std)])), spike) == causes


@pytest.mark.parametrize(
    ("node", "step", "first"),
    [
        ("SwishBackward", 50, "custom-backward"),  # a derivative that ends where its input is large
        ("SwishBackward", 49, "data-outlier"),  # another step
        ("MmBackward0", 50, "data-outlier"),  # nothing of its own: what came was too large
    ],
)
def test_what_cannot_take_a_large_number_comes_before_the_batch_that_held_it(
    node: str, step: int, first: str
) -> None:
    lost = symptom("non-finite-gradient", "critical", 50)
    large = TensorNote("", [64, 24], "float32", -160.0, 160.0, numel=1536)
    site = OpSite("aten::exp", BACKWARD, "act", inputs=[large], node=node)
    autopsy = Autopsy(step, 0, verdict=OPERATION, first=site)
    evidence = Evidence([lost], None, "none", [autopsy], trained(*jump(3e4)))
    found = [each for rule in RULES for each in rule.conclude(evidence)]
    assert max(found, key=lambda each: each.confidence).cause == first


def test_numbers_far_from_order_one_where_nothing_is_learned() -> None:
    far, tiny = batch(tensor(0, 255, 70)), batch(tensor(-1e-6, 1e-6, 1e-7))
    assert told(stuck(far))[0] == told(stuck(tiny))[0] == "data-scale"
    assert told(trained(far)) == told(trained(tiny)) == []
    price = LossSeen(LossFacts("MseLossBackward0", "mean"), tensor(0, 1, 1), tensor(1e5, 3e5, 6e4))
    assert told(stuck(batch(tensor(-1, 1, 1), losses=(price,))))[0] == "data-scale"


def test_what_one_model_gives_another_is_no_data() -> None:
    def fed(is_computed: bool) -> list[str]:
        lost = symptom("non-finite-loss", "critical", 0)
        told_apart: dict[str, object] = {"is_computed": is_computed}
        far = structs.replace(tensor(0, 2.5e10, 5e9), **told_apart)
        bad = structs.replace(tensor(-1, 1, 1), nan=3, first_bad=[0, 1], **told_apart)
        growing = symptom("explosion", "critical", 4)
        large = told(stuck(batch(far))) + told(trained(batch(far)), growing)
        return large + told(trained(batch(bad)), lost)

    assert fed(False).count("data-scale") == 2 and "data-nonfinite" in fed(False)
    assert not {"data-scale", "data-nonfinite"}.intersection(fed(True))


NORM = {"name": "bn", "kind": "BatchNorm1d", "training": True, "momentum": 0.1, "tracked": 200}


def norms(calls: LoopCalls, **fields: object) -> list[str]:
    layer = NormLayer(**{**NORM, **fields})  # type: ignore[arg-type]
    return told(trained(calls, NormLayers(119, [layer], 1)))


def test_running_statistics_out_of_step() -> None:
    healthy = LoopCalls(train_updates=120, proper_evals=9)
    assert norms(healthy) == []
    forever = LoopCalls(train_updates=40, eval_updates=80, first_eval_update=40, proper_evals=3)
    assert norms(forever) == ["norm-state"]
    assert norms(LoopCalls(train_updates=120, train_evals=4)) == ["norm-state"]
    assert norms(LoopCalls(train_updates=120, train_evals=1)) == []
    assert norms(healthy, momentum=0.0, is_initial=True) == ["norm-state"]
    assert norms(healthy, momentum=0.99) == norms(healthy, momentum=1e-4) == ["norm-state"]
    assert norms(healthy, momentum=None) == norms(healthy, momentum=0.01) == []
    assert norms(healthy, training=False, is_initial=True) == ["norm-state"]
    assert norms(healthy, training=False) == []
    pretrained = LoopCalls(eval_updates=120, first_eval_update=0)
    assert norms(pretrained) == []
    assert norms(pretrained, is_initial=True) == ["norm-state"]


def continued(entries: int, after: list[float], holds: list[str], **fields: object) -> list[str]:
    run = trained(losses=[2.0 * 0.95**at for at in range(80)])
    run.see(StateLoaded(80, "begins", 1, entries=entries, holds=holds, kind="Adam", rate=0.01))
    for step, loss in enumerate(after):
        run.see(Step(step, 0, optimizer=1, loss=loss, lrs=[0.01], **fields))
    return told(run)


LEVEL = 2.0 * 0.95**79
JUMPED = [LEVEL, 5 * LEVEL, 8 * LEVEL, 9 * LEVEL, 8 * LEVEL, 6 * LEVEL, 5 * LEVEL]


def test_a_training_that_goes_on_without_its_optimizer() -> None:
    assert continued(0, JUMPED, ["module"]) == ["resume-state"]
    assert continued(4, JUMPED, ["module", "optimizer"]) == []
    assert continued(0, [LEVEL] * 8, ["module"]) == []  # fine-tuning, and nothing came of it
    assert continued(0, JUMPED, []) == []  # a model of its own


def test_weights_of_which_nothing_was_taken_over() -> None:
    lost_names = StateLoaded(0, "module", missing=8, unexpected=8)
    adapter = StateLoaded(0, "module", matched=4, missing=80)
    assert told(trained(lost_names)) == ["resume-state"]
    assert told(trained(adapter)) == []


def test_clipping_by_a_norm_that_is_not_finite() -> None:
    infinite = {"grad_norm": float("inf"), "norms": bytes(8), "max_norm": 1.0}
    assert told(trained(TABLE, flags=bytes([NORM_OVERFLOW, 0]), **infinite)) == ["clip-nonfinite"]
    assert told(trained(TABLE, flags=bytes([NAN, 0]), **infinite)) == ["clip-nonfinite"]
    wiped = {"grad_norm": 1e21, "grad_norm_clipped": 0.0, "norms": bytes(8)}
    assert told(trained(TABLE, flags=bytes(2), max_norm=1.0, **wiped)) == ["clip-nonfinite"]
    free = {**infinite, "max_norm": None}
    assert told(trained(TABLE, flags=bytes([NORM_OVERFLOW, 0]), **free)) == []


def test_ranks_that_drift_apart() -> None:
    assert told(trained(RankState(8, 0, 2, "a", differing=[1], is_wrapped=True))) == ["dist-desync"]
    assert told(trained(LoopCalls(train_updates=60, unsynced=60))) == ["dist-desync"]
    assert told(trained(LoopCalls(train_updates=60, unsynced=3))) == []
    assert told(trained(RankState(8, 0, 2, "a", peers=1))) == []


def test_two_replays_that_disagree_are_never_more_than_consistent() -> None:
    from tuimon.diagnose.evidence import Evidence
    from tuimon.diagnose.rules.replaying import Disagreeing

    once = Autopsy(3, 0, verdict=NOT_REPRODUCED, recorded_loss=float("nan"), rerun_loss=1.0)
    for autopsies, expected in (
        ((once,), []),
        ((once, once), ["backend-kernel", "hardware-fault"]),
    ):
        evidence = Evidence((), None, "none", autopsies, Circumstances())
        found = list(Disagreeing().conclude(evidence))
        assert [each.cause for each in found] == expected
        assert all(each.status == "consistent" and each.confidence < 0.5 for each in found)


def test_half_precision_loses_gradients_that_look_like_dead_units() -> None:
    dead = symptom("dead-units", dead_share=0.6)
    assert told(stuck(active("Linear", "float16")), dead)[0] == "fp16-underflow"
    assert told(stuck(active("Linear")), dead)[0] == "dead-relu"


def test_a_batch_that_is_not_finite_and_the_step_it_spoils() -> None:
    held = TensorSummary("0", [8, 4], "float32", looked_at=32, posinf=2, low=0, high=1)
    poisoned = trained(Batch(40, 0, "suspicion", [held]))
    here, before = (
        symptom("non-finite-gradient", "critical", 40),
        symptom("non-finite-loss", step=9),
    )
    assert told(poisoned, here) == ["data-nonfinite"]
    assert told(poisoned) == told(poisoned, here, before) == []
    mask = TensorSummary("1", [8, 4], "float32", looked_at=32, neginf=2, low=0, high=0)
    assert told(trained(Batch(40, 0, "suspicion", [mask])), here) == []


def learned_by_heart(passes: int, level: float) -> Circumstances:
    losses = [1.4] * 20 + [level] * 160
    samples = [
        ParameterSamples(at, 0, [ParameterSample("w", 0.1, 1.0, 1.0, 1e-3)]) for at in (1, 2)
    ]
    table = LayerTable(0, ["w"], [[4, 4]], ["float32"], [True], [0])
    return trained(table, *samples, losses=losses, data_epoch=passes - 1)


def test_labels_that_are_only_learned_by_heart() -> None:
    slow = symptom("slow-progress", "info", chance=1.386)
    assert told(learned_by_heart(8, 1.34), slow) == ["label-semantics"]
    assert told(learned_by_heart(1, 1.34), slow) == []  # a hard task, seen once
    assert told(learned_by_heart(8, 1.2), slow) == []


def test_an_update_past_the_scaler_comes_before_what_overflows_then() -> None:
    from tuimon.model.amp import AmpCalls

    past = trained(AmpCalls(scaled=60, direct_steps=60, first={"direct_steps": 0}))
    assert causes(past, symptom("non-finite-gradient", "critical", 1)) == ["amp-order"]


def buffer_lost(name: str, step: int, *, severity: str = "warning") -> list[str]:
    bad = [BadTensor("buffer", name, 3, 0, 0, 8)]
    run = trained()
    run.see(Step(step, 0, loss=1.0, lrs=[0.01], bad=bad))
    return told(run, symptom("non-finite-buffer", severity, step))


def test_what_a_buffer_is_tells_what_its_nan_means() -> None:
    assert buffer_lost("1.running_var", 9) == ["norm-state"]
    assert buffer_lost("positions.table", 0) == ["uninit-weights"]
    assert buffer_lost("codes", 9) == buffer_lost("mask", 0, severity="info") == []
