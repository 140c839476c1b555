"""What is not the cause, or not the place, is never confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import tuimon
from tests.train.conftest import Feed
from tests.train.trials.patients import BAD, PATIENTS, train
from tuimon.diagnose.findings import Finding, Where
from tuimon.model.autopsy import LEAF, Autopsy, OpSite
from tuimon.model.trials import CONFIRMED, TrialRecord
from tuimon.train.trials import trying

# Everything that a trial exists for.
CAUSES = (
    "log-zero", "sqrt-norm-zero", "div-zero", "domain-error", "exp-overflow", "zero-times-inf",
    "masked-softmax", "empty-reduction", "eps-underflow", "fp16-overflow", "where-trap",
    "uninit-weights", "norm-state", "data-nonfinite", "data-degenerate",
)  # fmt: skip
# Beside the cause itself: what undoes these undoes it, too.
ALSO = {
    "where-trap": {"exp-overflow"},  # the branch that is shut out overflows
    "data-nonfinite": {"data-degenerate"},  # the value in the batch
}
# Their guilty sample, taken out, makes the step sound: what is said of it is true.
BY_SAMPLE = {"data-degenerate"}


def finding(cause: str, autopsy: Autopsy) -> Finding:
    site = autopsy.first
    where = Where(module=site.module, op=site.op) if site else Where()
    return Finding(
        cause=cause, severity="critical", confidence=0.9, status="consistent", step=BAD, where=where
    )


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[str, str], str]]:
    """Trials of wrong causes and places stand in for the real ones: (place, cause) -> result."""
    found: dict[tuple[str, str], str] = {}
    test = trying.Trials.test

    def placebos(self: trying.Trials, autopsy: Autopsy, *rest: Any) -> None:
        self.made = -1000
        for place, other in places(autopsy).items():
            wrong = [finding(cause, other) for cause in CAUSES]
            monkeypatch.setattr(trying, "candidates", lambda _, wrong=wrong: wrong)
            told: list[TrialRecord] = []
            self._publish = told.append
            test(self, other, *rest)
            found.update({(place, trial.cause): trial.result for trial in told})

    monkeypatch.setattr(trying.Trials, "test", placebos)
    yield found


def places(autopsy: Autopsy) -> dict[str, Autopsy]:
    """The right place, and three that are not."""
    found = {"here": autopsy}
    site = autopsy.first
    if autopsy.verdict == LEAF:
        leaf = autopsy.leaves[0]
        other = msgspec.structs.replace(leaf.tensor, name="2.weight", nan=leaf.tensor.nan + 1)
        wrong = msgspec.structs.replace(leaf, tensor=other)
        found["another leaf"] = msgspec.structs.replace(autopsy, leaves=[wrong])
        return found
    assert site is not None

    def at(**change: Any) -> Autopsy:
        moved: OpSite = msgspec.structs.replace(site, **change)
        return msgspec.structs.replace(autopsy, first=moved)

    found["another module"] = at(module="2" if site.module != "2" else "0")
    found["another line"] = at(line=(site.line or 0) + 1)
    found["another operation"] = at(op="aten::tanh", node="TanhBackward0" if site.node else "")
    return found


@pytest.mark.parametrize("name", PATIENTS)
def test_placebos_do_not_confirm(feed: Feed, results: dict[Any, str], name: str) -> None:
    patient = PATIENTS[name]
    train(patient, tuimon.watch, first=BAD if patient.cause == "uninit-weights" else 0)
    confirmed = {about for about, result in results.items() if result == CONFIRMED}
    assert ("here", patient.cause) in confirmed
    allowed = {patient.cause} | ALSO.get(patient.cause, set())
    wrong = {about for about in confirmed if about[1] not in BY_SAMPLE}
    assert wrong <= {("here", cause) for cause in allowed}, results
    by_sample = {about for about in confirmed if about[1] in BY_SAMPLE}
    assert not by_sample or patient.sample is not None
