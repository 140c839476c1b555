"""Detectors: what is a symptom, how severe, at which step, and that one incident is one symptom."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuimon.diagnose.engine import MAX_SYMPTOMS, Engine
from tuimon.diagnose.incidents import MAX_INCIDENTS, RECOVERY_STEPS
from tuimon.model.causes import SYMPTOMS
from tuimon.model.records import (
    NAN,
    NEG_INF,
    NO_GRAD,
    NORM_OVERFLOW,
    POS_INF,
    BadTensor,
    DeviceStats,
    Goodbye,
    LayerTable,
    Loss,
    Record,
    Step,
)

NAN_VALUE, INF = math.nan, math.inf


def step(index: int, **fields: object) -> Step:
    settings: dict[str, object] = {"loss": 1.0, "grad_norm": 1.0, "flags": bytes(2), **fields}
    return Step(step=index, time_ns=0, **settings)  # type: ignore[arg-type]


def bad_gradient(index: int, bits: int = NAN, **fields: object) -> Step:
    return step(index, grad_norm=NAN_VALUE, flags=bytes([0, bits]), **fields)


def found(*records: Record, close: bool = True) -> list[tuple[str, int | None, str]]:
    engine = Engine()
    for record in records:
        engine.see(record)
    if close:
        engine.close()
    assert all(symptom.kind in SYMPTOMS for symptom in engine.symptoms)
    return [(s.kind, s.step, s.severity) for s in engine.symptoms]


def tensor(what: str, nan: int = 0, posinf: int = 0, neginf: int = 0, name: str = "w") -> BadTensor:
    return BadTensor(what, name, nan, posinf, neginf, 8)


CASES = {
    "healthy": ([step(i) for i in range(5)], []),
    "missing is not bad": ([step(0, loss=None, grad_norm=None, flags=b"")], []),
    "no gradient is not bad": ([step(0, flags=bytes([NO_GRAD, 0]))], []),
    "NaN loss, finite gradient": (
        [step(0), step(1, loss=NAN_VALUE), step(2)],
        [("non-finite-loss", 1, "warning")],
    ),
    "NaN loss that poisons": (
        [bad_gradient(3, loss=NAN_VALUE)],
        [("non-finite-loss", 3, "critical"), ("non-finite-gradient", 3, "critical")],
    ),
    "the loss of an earlier micro-batch": (
        [step(0, loss_sum=-INF)],
        [("non-finite-loss", 0, "warning")],
    ),
    "gradients alone": ([bad_gradient(7, POS_INF)], [("non-finite-gradient", 7, "critical")]),
    "a NaN norm alone": (
        [step(2, grad_norm=NAN_VALUE, flags=b"")],
        [("non-finite-gradient", 2, "critical")],
    ),
    "an infinite norm without parameters": (
        [step(2, grad_norm=INF, flags=b"")],
        [("non-finite-gradient", 2, "critical")],
    ),
    "a norm that overflows": (
        [step(2, grad_norm=INF, flags=bytes([NORM_OVERFLOW, 0]))],
        [("explosion", 2, "warning")],
    ),
    "a total that overflows": (
        [step(2, grad_norm=INF, flags=b"", norms=np.array([3e38, 3e38], "<f4").tobytes())],
        [("explosion", 2, "warning")],
    ),
    "left out by a GradScaler": (
        [bad_gradient(0, skipped=True, loss_scale=65536.0)],
        [("non-finite-gradient", 0, "info")],
    ),
    "left out on request": (
        [bad_gradient(0, skipped=True)],
        [("non-finite-gradient", 0, "warning")],
    ),
    "NaN loss left out by a GradScaler": (
        [bad_gradient(37, loss=NAN_VALUE, skipped=True, loss_scale=8.0)],
        [("non-finite-loss", 37, "warning"), ("non-finite-gradient", 37, "info")],
    ),
    "a loss whose update never comes": (
        [step(0), Loss(1, INF, site="train.py:9"), Goodbye("ok", 0)],
        [("non-finite-loss", 1, "warning")],
    ),
    "a loss that the script leaves out": (
        [Loss(4, NAN_VALUE), step(5)],
        [("non-finite-loss", 4, "warning")],
    ),
    "one loss told twice": (
        [Loss(1, NAN_VALUE), step(1, loss=NAN_VALUE)],
        [("non-finite-loss", 1, "warning")],
    ),
    "late statistics": (
        [
            step(0, late=True, loss=None, grad_norm=None, flags=b""),
            step(1, late=True, loss=None, grad_norm=None, flags=b""),
            DeviceStats(0, loss=1.0, grad_norm=1.0),
            DeviceStats(1, loss=NAN_VALUE, grad_norm=NAN_VALUE, flags=bytes([NAN])),
        ],
        [("non-finite-loss", 1, "critical"), ("non-finite-gradient", 1, "critical")],
    ),
    "late statistics of a left-out update": (
        [
            step(0, late=True, grad_norm=None, flags=b"", loss_scale=4.0),
            DeviceStats(0, grad_norm=INF, flags=bytes([POS_INF]), found_inf=True),
        ],
        [("non-finite-gradient", 0, "info")],
    ),
    "a parameter, written by the update before": (
        [step(0), bad_gradient(1, loss=NAN_VALUE, bad=[tensor("parameter", nan=3)])],
        [
            ("non-finite-loss", 1, "critical"),
            ("non-finite-gradient", 1, "critical"),
            ("non-finite-parameter", 0, "critical"),
        ],
    ),
    "a parameter, written by this update": (
        [step(0), step(1, bad=[tensor("parameter", nan=3)], weights_checked="after")],
        [("non-finite-parameter", 1, "critical")],
    ),
    "a parameter, bad in the second of two looks": (
        [step(0), step(1, bad=[tensor("parameter", nan=3)], weights_checked="both", bad_before=0)],
        [("non-finite-parameter", 1, "critical")],
    ),
    "a parameter, bad in both looks": (
        [step(0), step(1, bad=[tensor("parameter", nan=3)], weights_checked="both", bad_before=1)],
        [("non-finite-parameter", 0, "critical")],
    ),
    "a buffer bad before the update that spoils a parameter": (
        [
            step(0),
            step(
                1,
                bad=[tensor("parameter", nan=3), tensor("buffer", nan=1)],
                weights_checked="both",
                bad_before=1,
            ),
        ],
        [("non-finite-parameter", 1, "critical"), ("non-finite-buffer", 1, "warning")],
    ),
    "a parameter bad from the start": (
        [step(0, bad=[tensor("parameter", posinf=1)])],
        [("non-finite-parameter", 0, "critical")],
    ),
    "a frozen mask": (
        [
            LayerTable(0, ["w", "mask"], requires_grad=[True, False]),
            step(0, bad=[tensor("parameter", neginf=4, name="mask")]),
        ],
        [("non-finite-parameter", 0, "info")],
    ),
    "a mask in a buffer": (
        [step(50, bad=[tensor("buffer", neginf=6)])],
        [("non-finite-buffer", 50, "info")],
    ),
    "running statistics": (
        [step(0, bad=[tensor("buffer", neginf=6)]), step(37, bad=[tensor("buffer", nan=1)])],
        [("non-finite-buffer", 0, "info"), ("non-finite-buffer", 37, "warning")],
    ),
    "an overflowing moment": (
        [step(7), step(8, bad=[tensor("optimizer-state", posinf=1)])],
        [("non-finite-optimizer-state", 7, "warning")],
    ),
    "an exception": (
        [step(3), Goodbye("exception", 1, "ValueError: no")],
        [("exception", 3, "critical")],
    ),
    "a request to stop": ([step(3), Goodbye("stopped", 130)], []),
}


@pytest.mark.parametrize("name", CASES)
def test_symptoms(name: str):
    records, expected = CASES[name]
    assert found(*records) == expected


def test_a_training_without_optimizer_is_lost_where_nothing_finite_comes_back():
    def told(steps: range, *others: Record) -> tuple[str, bool]:
        engine = Engine()
        for record in [*others, *(Loss(at, NAN_VALUE) for at in steps)]:
            engine.see(record)
        engine.close()
        return engine.symptoms[0].severity, engine.unrecovered() == {"non-finite-loss"}

    assert told(range(3, 19)) == ("critical", True)
    assert told(range(3, 6)) == ("warning", False)  # too few to tell
    assert told(range(0, 16)) == ("warning", False)  # it never was finite: nothing was lost
    assert told(range(3, 60, 3)) == ("warning", False)  # it came back each time
    assert told(range(3, 19), step(1)) == ("warning", False)  # updates tell of their own


def test_one_incident_is_one_symptom_and_it_ends_after_calm():
    bad = [step(i, loss=NAN_VALUE) for i in range(10)]
    calm = [step(i) for i in range(10, 10 + RECOVERY_STEPS)]
    again = [step(100, loss=INF)]
    assert [s[1] for s in found(*bad, *calm[:-1], *again)] == [0]
    assert [s[1] for s in found(*bad, *calm, *again)] == [0, 100]


def test_calm_counts_only_in_a_row():
    almost = [step(1)] * (RECOVERY_STEPS - 1)
    bad = step(0, loss=NAN_VALUE)
    assert len(found(bad, *almost, bad, *almost, bad)) == 1


def test_an_incident_that_gets_worse_is_told_again():
    assert found(
        bad_gradient(0, skipped=True, loss_scale=2.0), bad_gradient(1, loss_scale=1.0)
    ) == [
        ("non-finite-gradient", 0, "info"),
        ("non-finite-gradient", 1, "critical"),
    ]


def test_a_scaler_that_finds_no_scale_is_no_calibration():
    falling = [bad_gradient(i + 3, skipped=True, loss_scale=65536 / 2**i) for i in range(16)]
    told = [s for s in found(*falling) if s[0] == "non-finite-gradient"]
    assert told == [("non-finite-gradient", 3, "info")]
    useless = [bad_gradient(19 + i, skipped=True, loss_scale=0.5 / 2**i) for i in range(9)]
    told = [s for s in found(*falling, *useless) if s[0] == "non-finite-gradient"]
    assert told == [("non-finite-gradient", 3, "info"), ("non-finite-gradient", 3, "warning")]


def test_optimizers_have_incidents_of_their_own():
    assert found(bad_gradient(0), bad_gradient(0, optimizer=1)) == [
        ("non-finite-gradient", 0, "critical"),
        ("non-finite-gradient", 0, "critical"),
    ]


def test_recovery_is_known():
    engine = Engine()
    engine.see(bad_gradient(0, loss=NAN_VALUE))
    assert engine.unrecovered() == {"non-finite-loss", "non-finite-gradient"}
    engine.see(step(1))
    assert engine.unrecovered() == set()


def test_weights_recover_only_when_they_were_looked_at():
    engine = Engine()
    engine.see(step(0, bad=[tensor("parameter", nan=1)], weights_checked="after"))
    engine.see(step(1))
    assert engine.unrecovered() == {"non-finite-parameter"}
    engine.see(step(2, weights_checked="before"))
    assert engine.unrecovered() == set()


def test_the_text_names_tensors_counts_and_the_place_and_is_plain():
    engine = Engine()
    engine.see(LayerTable(0, ["a", "b\x1b[31m"]))
    engine.see(Loss(0, NAN_VALUE, site="train.py:41"))
    engine.see(bad_gradient(0, NAN | NEG_INF, loss=NAN_VALUE))
    loss, gradient = engine.symptoms
    assert (
        loss.detail == "loss is NaN at train.py:41; the update was made: the weights take it over"
    )
    assert gradient.detail.startswith("gradient has NaN and -Inf in 1 of 2 parameters: b")
    assert "\x1b" not in gradient.detail


def test_the_number_of_symptoms_is_bounded():
    engine = Engine()
    calm = [step(0)] * RECOVERY_STEPS
    for _ in range(MAX_INCIDENTS + 5):
        for record in (step(0, loss=NAN_VALUE), *calm):
            engine.see(record)
    assert sum(s.kind == "non-finite-loss" for s in engine.symptoms) == MAX_INCIDENTS
    engine = Engine()
    for optimizer in range(MAX_SYMPTOMS + 3):
        engine.see(step(0, loss=NAN_VALUE, optimizer=optimizer))
    assert (len(engine.symptoms), engine.suppressed) == (MAX_SYMPTOMS, 3)
