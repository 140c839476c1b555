"""Synthetic trainings: records of one run, from a loss and a gradient norm for each step."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tuimon.diagnose.engine import Engine
from tuimon.model.batches import LossFacts, LossSeen, TensorSummary
from tuimon.model.records import AnyRecord, Batch, LayerTable, Step, Symptom

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
SHAPES = [[16, 8], [16], [16, 16], [16], [10, 16], [10]]

Curve = Callable[[int], float | None]


def table(epoch: int = 0, dtype: str = "float32") -> LayerTable:
    count = len(NAMES)
    return LayerTable(epoch, NAMES, SHAPES, [dtype] * count, [True] * count, [0] * count)


def step(at: int, loss: float | None, grad: float | None = 1.0, **fields: object) -> Step:
    """One update; `norms` of the parameters are those of equal shares unless they are given."""
    norms = fields.pop("norms", [] if grad is None else [grad / math.sqrt(6)] * 6)
    settings: dict[str, object] = {"lrs": [0.1], "flags": bytes(6), **fields}
    return Step(
        step=at,
        time_ns=0,
        loss=loss,
        grad_norm=grad,
        norms=np.array(norms, "<f4").tobytes(),
        **settings,  # type: ignore[arg-type]
    )


def training(steps: Iterable[int], loss: Curve, grad: Curve = lambda at: 1.0) -> list[AnyRecord]:
    """A table and a step for each of `steps`."""
    return [table(), *(step(at, loss(at), grad(at)) for at in steps)]


def classes(at: int, count: int = 10, each: int = 20) -> Batch:
    """A batch of evenly spread labels under a cross-entropy."""
    facts = LossFacts("NllLossBackward0", "mean", count)
    prediction = TensorSummary("prediction", [count * each, count], "float32")
    target = TensorSummary("target", [count * each], "int64", looked_at=count * each)
    labels = [(label, each) for label in range(count)]
    return Batch(at, 0, losses=[LossSeen(facts, prediction, target, labels)])


def noisy(curve: Curve, sigma: float, seed: int = 0) -> Curve:
    """The curve with log-normal noise, the same for the same step and seed."""

    def of(at: int) -> float | None:
        value = curve(at)
        noise = math.exp(sigma * random.Random(seed * 1_000_003 + at).gauss(0.0, 1.0))
        return None if value is None else value * noise

    return of


def falling(at: int) -> float:
    """A loss that is learned: from 2.3 towards 0.05."""
    return 0.05 + 2.25 * math.exp(-at / 80)


def diagnose(records: Iterable[AnyRecord], close: bool = True) -> Engine:
    """An engine that has seen them."""
    engine = Engine()
    for record in records:
        engine.see(record)
    if close:
        engine.close()
    return engine


def loud(engine: Engine) -> list[tuple[str, int | None, str]]:
    """Symptoms above info."""
    return [(s.kind, s.step, s.severity) for s in engine.symptoms if s.severity != "info"]


def of_kind(engine: Engine, kind: str) -> list[Symptom]:
    return [symptom for symptom in engine.symptoms if symptom.kind == kind]


def kinds(found: Sequence[Symptom]) -> set[str]:
    return {symptom.kind for symptom in found}
