"""A weight that no update can have led to, beside others that are merely large."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules import RULES
from tuimon.diagnose.rules.abstaining import abstain
from tuimon.model.records import Facts, Step, Symptom
from tuimon.model.samples import ParameterSample, ParameterSamples, StartingWeights

NAN = Symptom("non-finite-loss", 40, 0, "critical", "loss is NaN")
FLIPPED = 3e37


def trained(
    *,
    optimizer: str = "Adam",
    size: float = FLIPPED,
    norm: float = 1.0,
    rate: float | None = 1e-3,
    steps: tuple[int, ...] = tuple(range(41)),
    symptom: Symptom | None = NAN,
    **settings: float,
) -> list[Finding]:
    run = Circumstances()
    facts = Facts(optimizers=[optimizer], settings=[settings])
    run.see(facts)
    ones = np.full(1, 0.3, "<f4").tobytes()
    run.see(StartingWeights(["head.weight"], [8], ones, ones, ones))
    for step in steps:
        run.see(Step(step, 0, loss=1.0, grad_norm=norm, grad_norm_clipped=norm, lrs=[rate]))
    sample = ParameterSample("head.weight", weight_norm=size, compared=32)
    run.see(ParameterSamples(41, 0, [sample]))
    evidence = Evidence([symptom] if symptom else [], facts, "none", (), run)
    found = [finding for rule in RULES for finding in rule.conclude(evidence)]
    unknown = abstain(evidence, found)
    found += [] if unknown is None else [unknown]
    return sorted(found, key=lambda each: each.confidence, reverse=True)


@pytest.mark.parametrize(
    "about", [{"optimizer": "Adam"}, {"optimizer": "SGD", "momentum": 0.9}], ids=["Adam", "SGD"]
)
def test_a_weight_beyond_all_updates_is_told_and_nothing_is_blamed(about: Any) -> None:
    (found,) = trained(**about)
    assert found.cause == "unknown"
    assert found.evidence[0].startswith("head.weight holds 3.000e37 at step 41; by their rates")
    assert "beside the optimizer" in found.remedy.text


@pytest.mark.parametrize(
    "about",
    [
        {"size": 900.0},  # another model was loaded into it
        {"size": math.inf},  # not finite: what has led there is not known
        {"rate": 1e33},
        {"rate": None},
        {"optimizer": "SGD", "norm": 1e35},
        {"optimizer": "SGD", "norm": math.inf},
        {"optimizer": "SGD", "momentum": 1.0},
        {"optimizer": "Own"},  # whose update has no known bound
        {"steps": (*range(20), *range(30, 41))},  # updates that were not seen
        {"symptom": None},
    ],
    ids=str,
)
def test_a_large_weight_that_something_else_explains(about: Any) -> None:
    told = [line for each in trained(**about) for line in each.evidence]
    assert not any("by their rates" in line for line in told)
