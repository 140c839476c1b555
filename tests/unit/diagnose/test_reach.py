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
    return sorted(found, key=lambda each: each.confidence, reverse=True)


@pytest.mark.parametrize(
    "about", [{"optimizer": "Adam"}, {"optimizer": "SGD", "momentum": 0.9}], ids=["Adam", "SGD"]
)
def test_a_weight_beyond_all_updates_is_consistent_with_a_bad_device(about: Any) -> None:
    found = trained(**about)
    assert found[0].cause == "hardware-fault"
    assert found[0].status == "consistent" and found[0].confidence <= 0.6
    assert found[0].where.param == "head.weight"
    assert "lr-too-high" not in [each.cause for each in found]


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
    assert "hardware-fault" not in [each.cause for each in trained(**about)]
