"""From the first bad operation to its cause: what an operation was given decides, not its name."""

from __future__ import annotations

import math
import re

import pytest
from msgspec.structs import replace

from tuimon.diagnose.engine import Engine
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.rules import RULES
from tuimon.model.autopsy import (
    BACKWARD,
    FORWARD,
    LEAF,
    NOT_REPRODUCED,
    OPERATION,
    OPTIMIZER,
    Autopsy,
    OpSite,
    PoisonedLeaf,
    TensorNote,
)
from tuimon.model.causes import CAUSES
from tuimon.model.explained import EXPLAINED
from tuimon.model.records import Step, Symptom


def note(
    low: float | None = 0.5,
    high: float | None = 2.0,
    dtype: str = "float32",
    numel: int = 8,
    name: str = "",
    **counts: int,
) -> TensorNote:
    return TensorNote(name, [numel], dtype, low, high, numel=numel, **counts)


def nan(dtype: str = "float32", numel: int = 8) -> TensorNote:
    return TensorNote("", [numel], dtype, None, None, nan=1, numel=numel)


def inf(dtype: str = "float32") -> TensorNote:
    return TensorNote("", [8], dtype, 0.0, 1.0, posinf=1, numel=8)


def examined(
    op: str,
    inputs: list[TensorNote],
    output: TensorNote,
    *,
    phase: str = FORWARD,
    node: str = "",
    step: int = 5,
    **rest: object,
) -> Autopsy:
    site = OpSite(
        op, phase, "head", inputs=inputs, outputs=[output], node=node, line=7, file="t.py"
    )
    return Autopsy(step=step, time_ns=0, verdict=OPERATION, first=site, **rest)


def causes(*autopsies: Autopsy) -> list[str]:
    symptoms = [Symptom("non-finite-loss", 5, 0, "critical", "")]
    evidence = Evidence(symptoms, None, "none", autopsies)
    found = [finding for rule in RULES for finding in rule.conclude(evidence)]
    assert all(finding.remedy.text and finding.evidence for finding in found)
    return [f.cause for f in sorted(found, key=lambda f: f.confidence, reverse=True)]


FORWARD_CASES = [
    ("domain-error", "aten::sqrt", [], nan()),
    ("log-zero", "aten::log", [], inf()),
    ("exp-overflow", "aten::exp", [], inf()),
    ("empty-reduction", "aten::mse_loss", [note(None, None, numel=0)] * 2, nan(numel=1)),
    (
        "empty-reduction",
        "aten::div",
        [note(0.0, 0.0, numel=1, zeros=1), note(0.0, 0.0, "int64", numel=1, zeros=1)],
        nan(numel=1),
    ),
    (
        "div-zero",
        "aten::div",
        [note(0.0, 2.0, zeros=1), note(0.0, 0.0, numel=1, zeros=1)],
        nan(),
    ),
    ("zero-times-inf", "aten::mul", [note(0.0, 1.0, zeros=3)], nan()),
    ("zero-times-inf", "aten::sum", [note(-3.0, 0.0, neginf=2)], note(None, None, neginf=1)),
    ("masked-softmax", "aten::sub", [note(None, None, neginf=8)] * 2, nan()),
    ("domain-error", "aten::lgamma", [note(0.0, 1.0, zeros=1)], inf()),
    ("log-zero", "aten::log", [note(0.0, 1.0, zeros=1)], inf()),
    ("log-zero", "aten::log1p", [note(-1.0, 1.0)], inf()),
    ("domain-error", "aten::log", [note(-0.5, 1.0)], nan()),
    ("domain-error", "aten::pow", [note(-0.1, 1.0)], nan()),
    ("domain-error", "aten::acos", [note(-1.0, 1.0001)], nan()),
    ("domain-error", "aten::sqrt", [note(-1e-9, 1.0)], nan()),
    ("div-zero", "aten::rsqrt", [note(0.0, 1.0)], inf()),
    ("div-zero", "aten::pow", [note(0.0, 2.0)], inf()),
    ("div-zero", "aten::div", [note(), note(0.0, 1.0, zeros=2)], nan()),
    ("div-zero", "aten::std", [note(numel=1)], nan(numel=1)),
    ("div-zero", "aten::var", [note(numel=6)], nan(numel=6)),
    ("empty-reduction", "aten::mean", [note(None, None, numel=0)], nan(numel=1)),
    ("empty-reduction", "aten::nll_loss_forward", [note(-5.0, 0.0)], nan()),
    ("masked-softmax", "aten::_softmax", [note(neginf=8)], nan()),
    ("exp-overflow", "aten::exp", [note(-3.0, 95.0)], inf()),
    ("zero-times-inf", "aten::mul", [note(0.0, 1.0), note(-3.0, 0.0, neginf=2)], nan()),
    ("fp16-overflow", "aten::mul", [note(0, 300, "float16")] * 2, inf("float16")),
    ("fp16-overflow", "aten::_to_copy", [note(-7e4, 1.0)], inf("float16")),
    ("eps-underflow", "aten::div", [note(0, 1, "float16", zeros=1)] * 2, nan("float16")),
    ("eps-underflow", "aten::rsqrt", [note(0, 1, "float16", zeros=1)], inf("float16")),
    ("div-zero", "aten::rsqrt", [note(0, 1, zeros=1)], inf()),
    ("data-degenerate", "aten::_ctc_loss", [note()], inf()),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "op", "inputs", "output"), FORWARD_CASES)
def test_what_an_operation_was_given_names_the_cause(cause, op, inputs, output):
    assert causes(examined(op, inputs, output))[0] == cause


def test_a_batch_beyond_float16_is_named_too():
    batch = note(-7e4, 1.0, name="batch[0]")
    found = causes(examined("aten::_to_copy", [batch], inf("float16")))
    assert found == ["fp16-overflow", "data-scale"]


BACKWARD_CASES = [
    ("sqrt-norm-zero", "SqrtBackward0", ["SumBackward1", "MeanBackward0"]),
    ("sqrt-norm-zero", "PowBackward0", []),
    ("where-trap", "SqrtBackward0", ["WhereBackward0"]),
    ("where-trap", "ExpBackward0", ["SubBackward0", "WhereBackward0"]),
    ("where-trap", "DivBackward0", ["MulBackward0", "MaskedFillBackward0"]),
    ("div-zero", "DivBackward0", []),
    ("log-zero", "LogBackward0", []),
    ("domain-error", "AcosBackward0", []),
    ("custom-backward", "GateFnBackward", ["WhereBackward0"]),
    ("log-zero", "LogBackward0", ["NanToNumBackward0"]),
    ("domain-error", "ErfinvBackward0", []),
    ("masked-softmax", "LogsumexpBackward0", []),
]


@pytest.mark.parametrize(("cause", "node", "upstream"), BACKWARD_CASES)
def test_a_derivative_names_the_cause(cause, node, upstream):
    autopsy = examined("aten::div", [note()], nan(), phase=BACKWARD, node=node, upstream=upstream)
    assert causes(autopsy)[0] == cause


def test_a_derivative_of_what_had_run_away_accuses_no_zero():
    for node in ("PowBackward0", "DivBackward0", "SqrtBackward0"):
        grown = examined("aten::mul", [note(1e19, 1e20)], inf(), phase=BACKWARD, node=node)
        assert causes(grown) == []


def leaf(kind: str, step: int = 5, **counts: int) -> Autopsy:
    tensor = TensorNote("it", [8], "float32", 0.0, 1.0, numel=8, **counts)
    return Autopsy(step, 0, verdict=LEAF, leaves=[PoisonedLeaf(kind, tensor, [3])])


def test_poisoned_leaves():
    assert causes(leaf("batch", nan=1)) == ["data-nonfinite"]
    assert causes(leaf("target", nan=1)) == ["data-nonfinite"]
    assert causes(leaf("target", neginf=1)) == ["data-degenerate", "data-nonfinite"]
    assert causes(leaf("parameter", step=0, nan=8)) == ["uninit-weights"]
    assert causes(leaf("parameter", nan=8)) == []  # poisoned by an earlier step: not the cause
    assert causes(leaf("buffer", nan=8)) == ["norm-state"]
    assert causes(leaf("computed", nan=8)) == []  # the training has made it: no data is to blame


def test_the_guilty_sample_stands_in_the_finding():
    evidence = Evidence([], None, "none", [leaf("batch", nan=1)])
    [finding] = [f for rule in RULES for f in rule.conclude(evidence)]
    assert (finding.where.sample, finding.where.param) == (3, None)


def test_an_update_that_divides_by_an_epsilon_of_zero():
    inputs = [note(dtype="float16", name="0.weight"), note(0.0, 0.0, "float16", zeros=8)]
    autopsy = examined("aten::addcdiv_", inputs, nan("float16"), phase=OPTIMIZER, optimizer="Adam")
    assert causes(autopsy) == ["eps-underflow"]


def test_an_update_in_single_precision_that_no_epsilon_guards():
    inputs = [note(0.0, 0.0, zeros=8), note(0.0, 0.0, zeros=1)]
    autopsy = examined("aten::div", inputs, nan(), phase=OPTIMIZER, optimizer="Mine")
    assert causes(autopsy) == ["div-zero"]


HEALTHY_OPERANDS = [
    ("aten::mul", [note(1e30, 1e30), note(1e30, 1e30)], inf()),  # float32: growth, not the op
    ("aten::mse_loss", [note(0, 1e25), note()], inf()),
    ("aten::addmm", [note(), note(0, 1e30), note(0, 1e30)], inf()),
    ("my::op", [note()], nan()),
]


@pytest.mark.parametrize(("op", "inputs", "output"), HEALTHY_OPERANDS)
def test_an_operation_that_merely_overflowed_is_not_accused(op, inputs, output):
    assert causes(examined(op, inputs, output)) == []


def test_what_was_not_reproduced_accuses_nothing():
    good = examined("aten::log", [note(0.0, 1.0, zeros=1)], inf())
    autopsy = Autopsy(5, 0, verdict=NOT_REPRODUCED, first=good.first)
    assert causes(autopsy) == []


def test_every_cause_is_explained():
    assert set(EXPLAINED) == set(CAUSES)
    for slug, entry in EXPLAINED.items():
        assert entry.title and entry.what and entry.remedy, slug
        compile(entry.code, slug, "exec")


# What would be false, whatever the cause: clipping does not shorten Adam's steps, a lower beta2
# makes its spikes worse as often as not, moments that took in a NaN keep it.
FALSE = (r"(lower|smaller) beta2(?! is no)", r"skip (the|that|bad) batch", r"clip\w* .*tames? Adam")


def test_no_advice_is_folklore():
    for slug, entry in EXPLAINED.items():
        for pattern in FALSE:
            assert not re.search(pattern, f"{entry.remedy} {entry.why} {entry.code}"), slug


@pytest.mark.parametrize(("bad_at_scale_1", "found"), [(False, 0), (True, 1), (None, 1)])
def test_a_loss_scale_that_is_being_found_is_no_cause(bad_at_scale_1, found):
    half = note(-3e4, 3e4, "float16")
    engine = Engine(detectors=[])
    engine.see(
        examined(
            "aten::sum",
            [half],
            inf("float16"),
            phase=BACKWARD,
            node="AddmmBackward0",
            loss_scale=4096.0,
            bad_at_scale_1=bad_at_scale_1,
        )
    )
    assert len(engine.findings) == found


@pytest.mark.parametrize(
    ("at_scale_1", "severity"), [(True, "warning"), (None, "warning"), (False, "info")]
)
def test_an_update_left_out_for_what_no_scale_explains_is_more_than_a_remark(at_scale_1, severity):
    engine = Engine()
    engine.see(
        examined(
            "aten::rsqrt",
            [note(0, 1, "float16", zeros=1)],
            inf("float16"),
            trigger="non-finite-gradient",
            loss_scale=4096.0,
            bad_at_scale_1=at_scale_1,
        )
    )
    skip = Step(5, 0, loss=1.0, loss_scale=4096.0, skipped=True, grad_norm=math.nan)
    found = [s.severity for s in engine.see(skip) if s.kind == "non-finite-gradient"]
    assert found == [severity]
    assert bool(engine.findings) is (severity != "info")
    # An examination says nothing of another step.
    later = [*engine.see(replace(skip, step=90))]
    assert {s.severity for s in later} <= {"info"}
