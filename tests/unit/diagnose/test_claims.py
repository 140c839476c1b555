"""A cause claims what the record holds, and no more: how near to 0, whose gradient, which place."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.diagnose.test_motion_rules import PLATEAU
from tests.unit.diagnose.test_motion_rules import concluded as concluded_of
from tests.unit.diagnose.test_rules import examined, inf, nan, note
from tests.unit.diagnose.test_trials import finding, trial
from tuimon.diagnose.autopsies import entry
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules import RULES
from tuimon.diagnose.trials import decided
from tuimon.export.story import place
from tuimon.model.autopsy import BACKWARD, LEAF, Autopsy, PoisonedLeaf, TensorNote
from tuimon.model.explained import EXPLAINED
from tuimon.model.records import LayerTable, Symptom
from tuimon.model.samples import Activation, Activations
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE
from tuimon.model.verdict import sentence, verdict_lines

NORM = "norm-state"
TINY = 2.66e-44  # 1 / TINY is beyond the largest float32


def concluded(autopsy: Autopsy) -> list[Finding]:
    evidence = Evidence([Symptom("non-finite-gradient", 5, 0, "critical", "")], None, "none",
                        [autopsy])  # fmt: skip
    found = [finding for rule in RULES for finding in rule.conclude(evidence)]
    return sorted(found, key=lambda each: -each.confidence)


def said(autopsy: Autopsy) -> str:
    first = concluded(autopsy)[0]
    about = EXPLAINED[first.cause]
    return " ".join((about.title, about.what, *first.evidence))


def derivative(node: str, *inputs: object, op: str = "aten::div") -> Autopsy:
    return examined(op, list(inputs), inf(), phase=BACKWARD, node=node)


def test_a_logarithm_of_almost_0_is_not_called_one_of_an_exact_0() -> None:
    near = derivative("LogBackward0", note(0.03, 0.03), note(TINY, 1.0, zeros=0))
    assert concluded(near)[0].cause == "log-zero"
    assert "2.660e-44, no exact 0" in said(near)
    at = derivative("LogBackward0", note(0.03, 0.03), note(0.0, 1.0, zeros=2))
    assert "2 exact zeros" in said(at) and "no exact 0" not in said(at)


@pytest.mark.parametrize("node", ["LogBackward0", "DivBackward0", "RsqrtBackward0"])
def test_an_argument_that_was_not_recorded_is_not_told(node: str) -> None:
    gradient = note(0.03, 0.03, name="incoming gradient")
    told = said(derivative(node, gradient, op="aten::log"))
    assert "exact 0" not in told and "received 0" not in told
    assert "0, or so near to it" in told


def test_a_divisor_that_is_nowhere_near_0_is_not_accused() -> None:
    far = derivative("LogBackward0", note(0.03, 0.03), note(0.1, 1.0, zeros=0))
    assert not concluded(far)


def test_what_an_operation_of_the_backward_was_given_is_called_a_gradient() -> None:
    gradient = note(-0.03, -0.03, name="incoming gradient")
    autopsy = derivative("LogBackward0", gradient, op="aten::log")
    assert verdict_lines(autopsy)[1].startswith("in backward it was given incoming gradient [8]")


def test_loss_code_has_no_module() -> None:
    inside = derivative("LogBackward0", note(), note(0.0, 1.0, zeros=1))
    assert inside.first is not None
    outside = replace(inside, first=replace(inside.first, module="", in_model=False))
    where = concluded(outside)[0].where
    assert (where.module, where.line) == (None, 7)
    assert place({"op": where.op, "module": where.module, "file": "t.py", "line": 7}) == (
        "aten::div, at t.py:7"
    )


def test_a_trial_that_found_nothing_of_the_kind_speaks_against_the_cause() -> None:
    absent, other = trial(NO_DIFFERENCE, is_absent=True), trial(NO_DIFFERENCE)
    assert decided(finding(), [absent]).confidence <= 0.5
    assert decided(finding(), [other]).confidence == 0.9
    assert decided(finding(), [absent, trial(CONFIRMED)]).confidence > 0.9


FORWARD_CLAIMS = [
    ("aten::logit", [note(0.2, 1.0, zeros=0)], inf(), "exactly 1", "exactly 0"),
    ("aten::pow", [note(-1.0, 2.0)], inf(), "a number that is or may be 0", "exact 0"),
    ("aten::div", [note(), note(-1.0, 2.0)], inf(), "a number that is or may be 0", "exact 0 in"),
    ("aten::exp", [note(-900.0, 95.0)], inf(), "received 95", "900"),
    ("aten::exp", [note(0.0, 800.0, "float64")], inf("float64"), "709.8", "88.7"),
    ("aten::exp2", [note(0.0, 130.0)], inf(), "near 128", "88.7"),
    ("aten::nll_loss_forward", [note(-5.0, 0.0)], nan(), "weight of 0", "all of them are ignored"),
    ("aten::mm", [note(neginf=1), note()], nan(), "both signs", "?"),
]


@pytest.mark.parametrize(("op", "inputs", "output", "there", "not_there"), FORWARD_CLAIMS)
def test_a_claim_follows_what_was_given(op, inputs, output, there, not_there):
    evidence = concluded(examined(op, inputs, output))[0].evidence
    assert there in evidence[0] and not_there not in evidence[0]


@pytest.mark.parametrize(
    ("samples", "count", "said", "in_whole"),
    [
        ([17], 1, "in sample 17 before", ", sample 17"),
        ([3, 9], 2, "in samples 3, 9 (2 of 32) before", ", samples 3, 9 (2 of 32)"),
        (range(16), 30, "in samples 0, 1, 2, 3, … (30 of 32) before", "14, 15, … (30 of 32)"),
        (range(16), 32, "in all 32 samples before", ", all 32 samples"),
        (range(16), 0, "in samples 0, 1, 2, 3, … before", "14, 15"),  # of an older version
    ],
)
def test_a_list_of_bad_samples_says_how_many_there_are(samples, count, said, in_whole):
    tensor = TensorNote("x", [32, 4], "float32", 0.0, 1.0, nan=40, numel=128)
    leaf = PoisonedLeaf("batch", tensor, list(samples), count)
    autopsy = Autopsy(5, 0, verdict=LEAF, leaves=[leaf])
    assert said in sentence(autopsy)
    assert concluded(autopsy)[0].evidence[0].endswith(in_whole)
    assert entry(autopsy)["leaves"][0]["bad_samples"] == (count or 16)


@pytest.mark.parametrize(
    ("kind", "shape", "found"),
    [("LayerNorm", [1], True), ("LayerNorm", [16], False), ("Linear", [1], False)],
)
def test_a_normalisation_of_one_number_gives_nothing_of_it(kind, shape, found):
    table = LayerTable(0, ["head.3.weight"], [shape], ["float32"], [True], [0])
    seen = Activations(3, [Activation("head.3", 1, 64, kind=kind)])
    names = [each for each in concluded_of(table, seen, symptom=PLATEAU) if each.cause == NORM]
    assert bool(names) == found
    if found:
        assert "head.3 (LayerNorm) normalises one number" in names[0].evidence[0]
        assert names[0].where.module == "head.3" and "remove" in names[0].remedy.text
    learns = concluded_of(table, seen, symptom=None, losses=tuple(0.95**at for at in range(120)))
    assert not [each for each in learns if each.cause == NORM]
