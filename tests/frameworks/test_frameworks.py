"""Unmodified trainings by other people's loops: what is published is what they see themselves.

Each script runs three times: bare, under `tuimon run`, and telling tuimon with one line.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.frameworks.harness import START_LIMIT_S, Seen, run, same
from tuimon.model.records import Step

CASES = {
    "trains_by_hf.py": (
        "transformers",
        ["language_model", "no_clipping", "half_compiled", "hidden_nan"],
    ),
    "trains_by_accelerate.py": ("accelerate", ["accumulated", "half"]),
    "trains_by_lightning.py": (
        "lightning",
        ["accumulated", "plain", "by_value", "half", "scaled", "by_hand"],
    ),
}
HOWS = ("run", "watch")

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(4 * START_LIMIT_S)]
Runs = Mapping[str, Seen]


@pytest.fixture(scope="module", params=CASES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All runs of one script, by how it was run."""
    library, cases = CASES[request.param]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    folder: Path = tmp_path_factory.mktemp(library)
    return {how: run(how, request.param, cases, folder, os.environ) for how in ("bare", *HOWS)}


@pytest.mark.parametrize("how", HOWS)
def test_nobody_can_tell(runs: Runs, how: str) -> None:
    """Weights, optimizer state, random stream, losses and norms bit for bit; few words of ours."""
    bare, seen = runs["bare"], runs[how]
    assert repr(seen.truths) == repr(bare.truths)
    assert seen.theirs == bare.theirs
    expected = ["this is run"]
    if how == "run" and "hidden_nan" in seen.truths:
        steps = [each for each in seen.records if isinstance(each, Step)]
        bad = next(
            s.step for s in steps if s.grad_norm is not None and not math.isfinite(s.grad_norm)
        )
        expected += [
            f"step {bad}: the batch batch[x] held +Inf",
            f"first non-finite value: gradient at step {bad}",
        ]
    assert len(seen.ours) == len(expected)
    assert all(line.startswith(f"tuimon: {e}") for line, e in zip(seen.ours, expected, strict=True))
    assert seen.warnings == []


@pytest.mark.parametrize("how", HOWS)
def test_every_update_once(runs: Runs, how: str) -> None:
    seen = runs[how]
    for case, truth in seen.truths.items():
        steps = seen.steps_of(case)
        assert len(steps) == len(truth["micro"]) > 0, case
        turns = [index % truth["optimizers"] for index in range(len(steps))]
        assert [step.optimizer for step in steps] == turns, case
    assert len(seen.steps) == sum(len(truth["micro"]) for truth in seen.truths.values())
    first = [step.step for step in seen.steps if step.optimizer == 0]
    assert first == list(range(len(first)))
    second = [step.step for step in seen.steps if step.optimizer == 1]
    assert second == list(range(len(second)))


@pytest.mark.parametrize("how", HOWS)
def test_what_is_published_is_what_the_script_sees(runs: Runs, how: str) -> None:
    seen = runs[how]
    for case, truth in seen.truths.items():
        for index, step in enumerate(seen.steps_of(case)):
            where = f"{case}, update {index}"
            micro = [loss / truth["divided_by"] for loss in truth["micro"][index]]
            assert step.backward_calls == len(micro), where
            assert same(step.loss, micro[-1]), where
            assert same(step.loss_sum, sum(micro)), where
            assert same(step.grad_norm, truth["norms"][index]), where
            assert step.lrs and all(same(lr, truth["lrs"][index]) for lr in step.lrs), where
            assert step.skipped == (index in truth["skipped"]), where
            assert same(step.max_norm, truth["max_norm"]), where
            assert same(step.grad_norm_clipped, truth["clipped"][index]), where
            assert seen.names_at(step) == truth["names"], where
            assert (step.loss_scale is None) == (case != "scaled"), where


@pytest.mark.parametrize("how", HOWS)
def test_the_tests_above_see_what_they_are_about(runs: Runs, how: str) -> None:
    """Clipping acts, batches are accumulated, rates change and the poisoned loss is there."""
    seen = runs[how]
    for case, truth in seen.truths.items():
        steps = seen.steps_of(case)
        acts = [step.grad_norm_clipped < step.grad_norm for step in steps]
        clips = case == "by_value" or (truth["max_norm"] is not None and case != "hidden_nan")
        assert any(acts) == clips, case
        if truth["divided_by"] > 1 or case == "language_model":
            assert max(step.backward_calls for step in steps) == 2, case
        if case == "hidden_nan":
            assert math.isnan(steps[-1].loss) and steps[-1].bad
