"""Causes of trainings that grow, stall or spike: circumstances decide between the same symptoms."""

from __future__ import annotations

import numpy as np
import pytest

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.engine import Engine
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules import RULES
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.model.amp import AmpCalls
from tuimon.model.batches import LossFacts, LossSeen, TensorSummary
from tuimon.model.crash import Crash
from tuimon.model.records import Batch, Facts, LayerTable, Step, Symptom
from tuimon.model.samples import Activation, Activations


def symptom(kind: str, severity: str = "warning", step: int = 0, **figures: float) -> Symptom:
    return Symptom(kind, step, 0, severity, f"{kind} seen", figures)


def tensor(low: float, high: float, std: float, shape: tuple[int, ...] = (32, 8)) -> TensorSummary:
    mean = (low + high) / 2
    return TensorSummary(
        "0", [*shape], "float32", looked_at=256, low=low, high=high, mean=mean, std=std
    )


def lost(reduction: str = "mean", above: tuple[str, ...] = (), op: str = "MseLossBackward0"):
    facts = LossFacts(op, reduction, above=[*above])
    return LossSeen(facts, tensor(-1, 1, 1), tensor(-1, 1, 1))


def run(
    *records: object, norms: tuple[float, ...] = (1.0,), rates: tuple[float, ...] = (0.1,)
) -> Circumstances:
    found = Circumstances()
    for step, norm in enumerate(norms):
        rate = rates[min(step, len(rates) - 1)]
        stored = np.full(2, norm, "<f4").tobytes()
        found.see(Step(step, 0, loss=1.0, grad_norm=norm, lrs=[rate], norms=stored))
    for record in records:
        found.see(record)
    return found


def batch(*inputs: TensorSummary, losses: tuple[LossSeen, ...] = ()) -> Batch:
    return Batch(0, 0, inputs=[*inputs], losses=[*losses])


def active(kind: str, dtype: str = "float32", calls: int = 1) -> Activations:
    return Activations(0, [Activation("body", calls, 64, dtype=dtype, kind=kind)])


def findings(
    circumstances: Circumstances, *symptoms: Symptom, optimizer: str = "SGD", amp: str = "none"
) -> list[Finding]:
    facts = Facts(optimizers=[optimizer], scaler=None)
    evidence = Evidence([*symptoms], facts, amp, (), circumstances)
    found = [finding for rule in RULES for finding in rule.conclude(evidence)]
    return sorted(found, key=lambda f: f.confidence, reverse=True)


def causes(
    circumstances: Circumstances, *symptoms: Symptom, optimizer: str = "SGD", amp: str = "none"
) -> list[str]:
    return [f.cause for f in findings(circumstances, *symptoms, optimizer=optimizer, amp=amp)]


GROWING = symptom("explosion", "critical", 4)


def test_growth_alone_is_the_learning_rate():
    assert causes(run(batch(tensor(-3, 3, 1.0))), GROWING) == ["lr-too-high"]


def test_growth_on_raw_inputs_is_their_scale():
    assert causes(run(batch(tensor(-1024, 1024, 590.0))), GROWING)[0] == "data-scale"
    assert causes(run(batch(tensor(0, 255, 70.0))), GROWING)[0] == "data-scale"


def test_growth_of_a_summed_loss_is_the_sum():
    circumstances = run(batch(tensor(-3, 3, 1.0), losses=(lost("sum"),)))
    assert causes(circumstances, GROWING)[0] == "loss-scaling"
    assert causes(run(batch(tensor(-3, 3, 1.0), losses=(lost("mean"),))), GROWING) == [
        "lr-too-high"
    ]


def test_a_leap_in_a_recurrent_model_is_its_product_over_time():
    leap = (1.0, 2.0, 3e6)
    assert causes(run(active("LSTM"), norms=leap), GROWING)[0] == "grad-explode"
    assert causes(run(active("Cell", calls=50), norms=leap), GROWING)[0] == "grad-explode"
    assert causes(run(active("Linear"), norms=leap), GROWING) == ["lr-too-high"]
    assert causes(run(active("LSTM"), norms=(1.0, 3.0, 9.0)), GROWING) == ["lr-too-high"]


def test_what_is_only_a_remark_accuses_nobody():
    for kind in ("explosion", "plateau", "frozen-parameters", "spike", "dead-units"):
        assert causes(run(), symptom(kind, "info", chance=1.0, rate_row=9.0)) == []


FROZEN = [
    ("lr-schedule", {"rate_row": 20.0}, ()),
    ("zero-grad", {"missing_row": 10.0}, ()),
    ("params-stuck", {"share": 0.75}, ()),
    ("fp16-underflow", {"zero_row": 20.0}, (active("Linear", "float16"),)),
    ("bf16-stall", {"changed_frac": 0.1}, (LayerTable(1, ["w"], [[4]], ["bfloat16"]),)),
]


@pytest.mark.parametrize(("cause", "figures", "records"), FROZEN)
def test_what_stands_still_names_why(cause, figures, records):
    assert causes(run(*records), symptom("frozen-parameters", **figures)) == [cause]


def test_zero_gradients_in_single_precision_are_not_underflow():
    assert causes(run(active("Linear")), symptom("frozen-parameters", zero_row=20.0)) == []


PLATEAU = symptom("plateau", chance=2.3)


def test_a_plateau_names_the_misuse_of_the_loss():
    spread = LossSeen(LossFacts("MseLossBackward0"), tensor(-1, 1, 1), spread=[[32, 1], [32]])
    assert causes(run(batch(losses=(spread,))), PLATEAU) == ["loss-api"]
    twice = lost(above=("LogSoftmaxBackward0", "SoftmaxBackward0"), op="NllLossBackward0")
    assert causes(run(batch(losses=(twice,))), PLATEAU) == ["loss-api"]


def test_a_plateau_with_live_gradients_points_at_the_labels():
    once = lost(above=("LogSoftmaxBackward0", "AddmmBackward0"), op="NllLossBackward0")
    assert causes(run(batch(losses=(once,))), PLATEAU) == ["label-semantics"]
    blown = Symptom("explosion", 90, 0, "critical", "it grows")
    assert "label-semantics" not in causes(run(batch(losses=(once,))), PLATEAU, blown)


def test_a_plateau_that_something_explains_does_not():
    fading = symptom("vanishing-gradient")
    assert causes(run(active("Sigmoid")), PLATEAU, fading) == ["grad-vanish"]
    order = AmpCalls(clipped_scaled=9, first={"clipped_scaled": 0})
    assert causes(run(order), PLATEAU) == ["amp-order"]


def test_a_wrong_order_that_hurts_nobody_is_no_finding():
    assert causes(run(AmpCalls(clipped_scaled=9)), optimizer="Adam") == []
    assert causes(run(AmpCalls(clipped_scaled=9, scaler_steps=90))) == []
    assert causes(run(AmpCalls(clipped_scaled=9, scaler_steps=9))) == ["amp-order"]


def test_steps_longer_by_the_scale_come_before_what_overflows_later():
    past = AmpCalls(scaled=90, direct_steps=90, first={"direct_steps": 0})
    lost = Symptom("non-finite-loss", 1, 0, "critical", "the loss is NaN")
    found = findings(run(past), lost, PLATEAU)
    assert [(f.cause, f.severity) for f in found[:1]] == [("amp-order", "critical")]
    # Adam divides by the scale; and what was lost before any such step has another cause.
    for optimizer, first in (("Adam", 0), ("SGD", 2)):
        late = AmpCalls(scaled=90, direct_steps=90, first={"direct_steps": first})
        others = findings(run(late), lost, PLATEAU, optimizer=optimizer)
        assert all(f.severity != "critical" for f in others if f.cause == "amp-order")


def test_fading_under_adam_without_warm_up_is_the_schedule():
    fading = symptom("vanishing-gradient")
    net = active("LayerNorm")
    assert causes(run(net), fading, optimizer="Adam")[0] == "lr-schedule"
    warming = run(net, norms=(1.0,) * 4, rates=(0.01, 0.02, 0.04, 0.1))
    assert causes(warming, fading, optimizer="Adam") == ["grad-vanish"]
    assert causes(run(net), fading, optimizer="SGD") == ["grad-vanish"]


def test_spikes_that_build_up_are_the_optimizer_and_sudden_ones_the_data():
    building, sudden = symptom("spike", spikes=3.0), symptom("spike", steps=12.0)
    assert causes(run(), building, optimizer="Adam") == ["opt-dynamics"]
    assert causes(run(), building) == ["lr-too-high"]
    assert causes(run(), sudden) == ["data-outlier"]


def test_buffers_lost_alone_are_the_normalisation():
    buffer = symptom("non-finite-buffer")
    assert causes(run(), buffer) == ["norm-state"]
    assert causes(run(), buffer, symptom("non-finite-parameter", "critical")) == []


CRASHES = [
    ("empty-reduction", "RuntimeError", "stack expects a non-empty TensorList", {}),
    ("domain-error", "_LinAlgError", "linalg.cholesky: input is not positive-definite", {}),
    ("label-range", "IndexError", "Target 6 is out of bounds.", {}),
    ("norm-state", "ValueError", "Expected more than 1 value per channel when training", {}),
    ("amp-order", "ValueError", "Attempting to unscale FP16 gradients.", {}),
    ("out-of-memory", "OutOfMemoryError", "CUDA out of memory.", {"out_of_memory": True}),
    ("label-range", "IndexError", "index out of range in self", {"op": "aten::embedding"}),
]


@pytest.mark.parametrize(("cause", "kind", "message", "rest"), CRASHES)
def test_a_crash_is_named_by_what_it_says(cause, kind, message, rest):
    crash = Crash(3, 0, kind=kind, message=message, **rest)
    assert causes(run(crash)) == [cause]


REFUSED = "Expected scale to satisfy the constraint GreaterThan(lower_bound=0.0), but found {}"


def test_a_distribution_refuses_what_lies_outside_of_its_domain():
    for bad, found in (("tensor([-1., 1.])", ["domain-error"]), ("tensor([nan, 1.])", [])):
        crash = Crash(3, 0, kind="ValueError", message=REFUSED.format(bad))
        assert causes(run(crash)) == found


def test_a_crash_of_the_script_itself_accuses_nothing():
    assert causes(run(Crash(3, 0, kind="KeyError", message="'lr'"))) == []


def test_a_cause_that_shows_twice_at_one_place_is_one_finding():
    class Twice:
        def conclude(self, evidence):
            for step, severity in ((3, "warning"), (9, "critical")):
                yield from_symptom("dead-relu", symptom("dead-units", severity, step), 0.9, [])

    engine = Engine(detectors=[], rules=[Twice()])
    engine.close()
    [found] = engine.findings
    assert (found.cause, found.step, found.severity) == ("dead-relu", 3, "critical")


@pytest.mark.parametrize(("step", "places"), [(3, ["model"]), (4, [None, "model"])])
def test_a_cause_without_a_place_gives_way_to_the_same_one_with_a_place(step, places):
    class Both:
        def conclude(self, evidence):
            vague = symptom("dead-units", "critical", step)
            yield from_symptom("dead-relu", vague, 0.9, [])
            yield from_symptom("dead-relu", symptom("dead-units", step=3), 0.8, [], module="model")

    engine = Engine(detectors=[], rules=[Both()])
    engine.close()
    assert [found.where.module for found in engine.findings] == places
    assert (engine.findings[0].severity, engine.findings[0].confidence) == ("critical", 0.9)


def trained(losses: list[float], rates: list[float]) -> Circumstances:
    found = Circumstances()
    for step, (loss, rate) in enumerate(zip(losses, rates, strict=True)):
        found.see(Step(step, 0, loss=loss, grad_norm=1.0, lrs=[rate]))
    return found


def test_a_rate_that_vanishes_before_the_loss_is_low_is_the_schedule():
    vanishing = [0.1 * 0.5**step for step in range(100)]
    assert set(causes(trained([2.0] * 100, vanishing))) == {"lr-schedule"}
    learned = [2.0 * 0.7**step for step in range(100)]
    assert causes(trained(learned, vanishing)) == []
    cosine = [0.1 * max(1e-6, 1 - step / 100) for step in range(101)]
    assert causes(trained([2.0] * 101, cosine)) == []


def test_a_softmax_before_a_softmax_is_seen_without_a_plateau():
    circumstances = trained([2.0] * 60, [0.1] * 60)
    twice = lost(above=("LogSoftmaxBackward0", "SoftmaxBackward0"), op="NllLossBackward0")
    circumstances.see(batch(losses=(twice,)))
    assert causes(circumstances) == ["loss-api"]
