"""What looks at batches become: remarks, and the batch in the words of a symptom."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tuimon.diagnose.batches import MAX_REMARKS, non_finite_in_words
from tuimon.diagnose.engine import Engine
from tuimon.model.batches import LossFacts, LossSeen, TensorSummary
from tuimon.model.records import NAN, AnyRecord, Batch, Event, LayerTable, Loss, Step

NLL = LossFacts("NllLossBackward0", "mean", 6, -100)
MSE = LossFacts("MseLossBackward0", "mean")
BCE = LossFacts("BinaryCrossEntropyWithLogitsBackward0", "mean")


def tensor(name: str = "0", shape: tuple[int, ...] = (32, 12), **figures: Any) -> TensorSummary:
    usual = {"looked_at": 384, "nan": 0, "posinf": 0, "neginf": 0}
    usual |= {"low": -2.0, "high": 2.0, "mean": 0.0, "std": 1.0}
    return TensorSummary(name, [*shape], "float32", **{**usual, **figures})


def labels(low: int, high: int, count: int = 32, **fields: Any) -> LossSeen:
    spread = [(label, count // (high - low + 1)) for label in range(low, high + 1)]
    target = TensorSummary("target", [count], "int64", looked_at=count, low=low, high=high)
    usual = {"labels": spread, "label_range": [low, high], "ignored": 0, "outside": 0}
    return LossSeen(NLL, tensor("prediction", (count, 6)), target, **{**usual, **fields})


def batch(step: int, *inputs: TensorSummary, why: str = "first", losses: Any = ()) -> Batch:
    return Batch(step, 1_000_000_000 * step, why, [*inputs], [*losses], 0, step, 16)


def told(*records: AnyRecord, close: bool = True) -> list[Event]:
    engine = Engine()
    events = [event for record in records for event in engine.remarks(record)]
    return events + (engine.last_remarks() if close else [])


def texts(events: list[Event], kind: str) -> list[str]:
    return [event.text for event in events if event.kind == kind]


def bad(step: int, **figures: Any) -> Batch:
    figures = figures or {"nan": 1, "first_bad": [13, 7], "bad_samples": 1}
    return batch(step, tensor(**figures), why="suspicion")


def test_the_first_batch_in_one_line() -> None:
    (text,) = texts(told(batch(0, tensor(), losses=[labels(0, 5)]), batch(1, tensor())), "batch")
    assert text.startswith("input 0: 32×12 float32 in -2 … 2, mean 0, std 1; NllLoss of 6 classes")
    assert text.endswith("16 batches an epoch")


def test_labels_of_the_first_batches_together() -> None:
    records = [
        batch(0, losses=[labels(1, 4)]),
        batch(1, losses=[labels(2, 5)]),
        batch(2, losses=[labels(1, 5)]),
        batch(3, losses=[labels(0, 5)], why="sample"),
    ]
    events = told(*records)
    (text,) = texts(events, "labels")
    assert text.startswith("labels 1 … 5 for 6 classes, never 0, in 96 targets; the most frequent")
    assert {event.severity for event in events} == {"info"}


def test_a_run_that_ends_early_tells_its_labels_too() -> None:
    assert texts(told(batch(0, losses=[labels(0, 5)]), close=False), "labels") == []
    assert len(texts(told(batch(0, losses=[labels(0, 5)])), "labels")) == 1


@pytest.mark.parametrize("later", [Loss(9, math.nan), Step(9, 0, loss=math.nan)])
def test_a_bad_batch_of_a_bad_loss_is_a_warning(later: AnyRecord) -> None:
    events = told(bad(9), later, Step(9, 0, loss=math.nan))
    assert [(event.severity, event.step) for event in events] == [("warning", 9)]
    assert events[0].text == "the batch already held 1 NaN in input 0 (sample 13, feature 7)"


def test_a_bad_batch_of_a_finite_step_is_a_remark() -> None:
    events = told(bad(9), Step(9, 0, loss=1.0, grad_norm=1.0))
    assert [event.severity for event in events] == ["info"]
    assert [event.severity for event in told(bad(9))] == ["info"]
    flags = np.array([NAN], np.uint8).tobytes()
    assert [event.severity for event in told(bad(9), Step(9, 0, loss=1.0, flags=flags))] == [
        "warning"
    ]
    # A GradScaler that leaves the update out is at work.
    assert [e.severity for e in told(bad(9), Step(9, 0, flags=flags, skipped=True))] == ["info"]


def test_many_bad_batches_are_told_a_few_times() -> None:
    records: list[AnyRecord] = []
    for step in range(50):
        records += [bad(step), Loss(step, math.nan)]
    assert len(told(*records)) == MAX_REMARKS


def test_an_additive_mask_is_no_fault() -> None:
    mask = tensor("mask", neginf=100, low=0.0, high=0.0, first_bad=[0, 1])
    assert non_finite_in_words(batch(0, tensor(), mask)) == ""
    infinite = tensor(neginf=2, first_bad=[1])
    assert non_finite_in_words(batch(0, infinite)) == "2 -Inf in input 0 (first: sample 1)"


def test_a_bad_target_is_named_by_its_loss() -> None:
    target = tensor("target", (16, 4), neginf=1, first_bad=[10, 2])
    found = non_finite_in_words(batch(0, losses=[LossSeen(MSE, tensor(), target)]))
    assert found == "1 -Inf in the target of MseLoss (sample 10, feature 2)"


def test_the_batch_stands_in_the_symptoms_of_its_step() -> None:
    engine = Engine()
    flags = np.array([NAN], np.uint8).tobytes()
    for record in (
        LayerTable(0, ["w"]),
        bad(9),
        Loss(9, math.nan, site="train.py:3"),
        Step(9, 0, loss=math.nan, flags=flags),
    ):
        engine.see(record)
    details = {symptom.kind: symptom.detail for symptom in engine.symptoms}
    note = "; the batch already held 1 NaN in input 0 (sample 13, feature 7)"
    assert details["non-finite-loss"].endswith(note)
    assert details["non-finite-gradient"].endswith(note)
    other = Engine()
    for record in (bad(8), Loss(9, math.nan), Step(9, 0, loss=math.nan)):
        other.see(record)
    assert "batch" not in other.symptoms[0].detail


def test_targets_that_contradict_their_loss() -> None:
    target = tensor("target", low=0.0, high=255.0)
    outside = LossSeen(BCE, tensor(), target, outside=3)
    (event,) = [e for e in told(batch(0, losses=[outside])) if e.kind == "target-range"]
    assert event.severity == "warning" and "3 of 384" in event.text and "255" in event.text
    every = labels(0, 0, labels=[], label_range=[], ignored=32)
    (event,) = [e for e in told(batch(0, losses=[every])) if e.kind == "ignored-labels"]
    assert event.severity == "warning" and "-100" in event.text


@pytest.mark.parametrize(
    ("whole", "spread", "severity"),
    [
        ((64, 64), [[64, 1], [64]], "warning"),
        ((8, 32, 32), [[8, 32, 1], [8, 1, 32]], "info"),  # quantiles in pairs
        ((64, 5), [[64, 1], [5]], "info"),
    ],
)
def test_every_prediction_against_every_target(
    whole: tuple[int, ...], spread: list[list[int]], severity: str
) -> None:
    seen = LossSeen(MSE, tensor("prediction", whole), tensor("target", whole), spread=spread)
    records = [batch(step, losses=[seen]) for step in range(5)]
    found = [event for event in told(*records) if event.kind == "loss-shapes"]
    assert [event.severity for event in found] == [severity]


def test_features_that_never_vary_and_equal_samples() -> None:
    vary = {"features": 12, "duplicates": 2, "duplicate_pair": [9, 4]}
    records = [
        batch(0, tensor(constant_features=3, **vary)),
        batch(1, tensor(constant_features=5, **vary)),
        batch(2, tensor(constant_features=2, **vary)),
    ]
    events = told(*records)
    assert texts(events, "constant-features") == ["2 of 12 features of input 0 do not vary"]
    (text,) = texts(events, "duplicate-samples")
    assert text.endswith("such as 9 and 4")
    assert {event.severity for event in events} == {"info"}


def test_raw_figures_are_told_but_no_alarm() -> None:
    events = told(batch(0, tensor(low=-1024.0, high=1024.0, std=552.0)))
    assert len(texts(events, "data-scale")) == 1
    assert texts(told(batch(0, tensor())), "data-scale") == []
    tokens = TensorSummary("0", [8, 99], "int64", looked_at=792, mean=25000.0, std=9000.0)
    assert texts(told(batch(0, tokens)), "data-scale") == []
    assert {event.severity for event in events} == {"info"}


def test_what_was_not_looked_at_is_said_so() -> None:
    device = TensorSummary("0", [32, 3], "float16", "cuda:0", why_not="on cuda:0: not read")
    (text,) = texts(told(batch(0, device)), "batch")
    assert "not looked at: on cuda:0" in text
    assert non_finite_in_words(batch(0, device)) == ""
