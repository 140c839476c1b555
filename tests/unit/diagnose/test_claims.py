"""A cause claims what the record holds, and no more: how near to 0, whose gradient, which place."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.diagnose.test_rules import examined, inf, nan, note
from tests.unit.diagnose.test_trials import finding, trial
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules import RULES
from tuimon.diagnose.trials import decided
from tuimon.export.story import place
from tuimon.model.autopsy import BACKWARD, Autopsy
from tuimon.model.explained import EXPLAINED
from tuimon.model.records import Symptom
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE
from tuimon.model.verdict import verdict_lines

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
