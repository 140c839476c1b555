"""A true cause is confirmed by a trial, and the guilty sample is found."""

from __future__ import annotations

import pytest

import tuimon
from tests.train.conftest import Feed
from tests.train.trials.patients import BAD, PATIENTS, train
from tuimon.model.autopsy import Autopsy
from tuimon.model.trials import TrialRecord


@pytest.mark.parametrize("name", PATIENTS)
def test_a_true_cause_is_confirmed(feed: Feed, name: str) -> None:
    patient = PATIENTS[name]
    first = BAD if patient.cause == "uninit-weights" else 0
    train(patient, tuimon.watch, first=first)
    told = [(e.kind, e.text, e.detail) for e in feed.events if "trial" in e.kind]
    autopsies = [
        (
            a.verdict,
            a.first and (a.first.op, a.first.phase, a.first.module, a.first.line, a.first.node),
            a.notes,
        )
        for a in feed.of(Autopsy)
    ]
    trials = feed.of(TrialRecord)
    mine = [t for t in trials if t.cause == patient.cause]
    assert [t.result for t in mine] == ["confirmed"], (autopsies, told)
    if patient.sample is not None:
        assert ("e-4" in mine[0].detail) == (name == "log of almost 0"), mine[0]
        assert mine[0].sample == patient.sample or patient.cause == "data-nonfinite", mine[0]
