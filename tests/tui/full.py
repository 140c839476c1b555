"""A frame with something for every screen: made of records, as a training would publish them."""

from __future__ import annotations

import math

import numpy as np

from tests.tui.fake import FakeRun
from tuimon.feed.past import Past
from tuimon.model.batches import LossFacts, LossSeen, TensorSummary
from tuimon.model.ranks import RankRow, RankRows
from tuimon.model.records import (
    BadTensor,
    Batch,
    DeviceReading,
    Event,
    Memory,
    Output,
    Step,
    System,
)
from tuimon.model.samples import (
    HISTOGRAM_BINS,
    Activation,
    Activations,
    Histogram,
    ParameterSample,
    ParameterSamples,
)
from tuimon.view.frame import Frame

NOW_S = 1_700_000_000.0
GIB = 2**30


def full_frame(*, bad: bool = True, world_size: int = 2, **changes: object) -> Frame:
    """A run of two ranks with AMP, batches, samples, readings and output."""
    run = FakeRun(steps=400, blocks=4, incident=bad)
    plain = run.frame()
    assert plain.layers is not None
    past = past_of(plain.layers.names, 400, bad=bad)
    values: dict[str, object] = {
        "past": past,
        "world_size": world_size,
        "system": past.readings[-1],
        "memory": {"cuda:0": Memory(NOW_S, "cuda:0", 60 * GIB, 80 * GIB, 75 * GIB)},
        "output": lines(bad=bad),
        "events": (*happened(), *plain.events),
        "ranks": ranks(),
        "lost": {"overrun": 12, "older output": 3},
    }
    return run.frame(**(values | changes))


def happened() -> tuple[Event, ...]:
    """Smaller things before the incident."""
    log = (
        (40, "info", "dump", "tensors written", "1.9 GiB in 6.2 s"),
        (120, "warning", "spike", "loss spike 8.1 sigma", "recovered after 30 steps"),
        (265, "warning", "spike", "grad norm 14.2 (clip 1.0)", "largest: layers.3.attn"),
    )
    return tuple(
        Event(step, NOW_S - 600 + step / 100, severity, kind, words, detail)
        for step, severity, kind, words, detail in log
    )


def past_of(names: list[str], steps: int, *, bad: bool) -> Past:
    """What such a run had published before now."""
    past = Past()
    for second in range(90):
        past.see(reading(second))
    for step in (0, 1, 2, *range(40, steps, 40)):
        past.see(batch(step, bad=bad and step == steps - 40))
    for at, step in enumerate(range(0, steps, 20)):
        items = [
            ParameterSample(name, 0.5 / (at + 1), 0.2 + at / 40, 4.0, 1e-3 * 0.9**at, 4096)
            for name in names
        ]
        past.see(ParameterSamples(step, 0, items))
        modules = [name.rpartition(".")[0] for name in names]
        past.see(
            Activations(step, [Activation(m, 1, 8192, 0.0, 0.5 + at / 50, 3.0) for m in modules])
        )
        for what in ("weight", "gradient", "activation"):
            for name in names[:8]:
                past.see(histogram(step, what, name, at))
    if bad:
        for step in range(steps - 15, steps - 12):
            tensors = [BadTensor("gradient", name, 64, 2, 0, 4096) for name in names]
            past.see(Step(step, 0, bad=tensors))
    return past


def reading(second: int) -> System:
    """One reading of the scribe."""
    load = 0.9 + 0.1 * math.sin(second / 5)
    devices = [
        DeviceReading(
            index,
            "NVIDIA H200",
            memory_used_bytes=int((60 + second / 10) * GIB),
            memory_total_bytes=141 * GIB,
            utilisation_frac=load,
            temperature_c=61.0,
            power_w=612.0,
        )
        for index in range(2)
    ]
    return System(
        NOW_S - 90 + second,
        devices,
        "",
        0.3 + 0.2 * math.sin(second / 9),
        61 * GIB,
        512 * GIB,
        1.02,
        int((8 + second / 60) * GIB),
        0.02,
        58 << 20,
    )


def batch(step: int, *, bad: bool) -> Batch:
    """One batch of a classifier."""
    images = TensorSummary(
        "0", [32, 1, 28, 28], "torch.float32", "cuda:0", 25088,
        nan=7 if bad else 0, posinf=0, neginf=0, low=-0.42, high=2.82 + step / 1000,
        mean=0.001 * (step % 7), std=1.0, zero_frac=0.0, first_bad=[3, 0, 2, 2] if bad else [],
        bad_samples=1 if bad else None,
    )  # fmt: skip
    logits = TensorSummary(
        "prediction", [32, 10], "torch.float32", "cuda:0", 320, nan=0, posinf=0, neginf=0,
        low=-3.0, high=4.0, mean=0.1, std=1.2, zero_frac=0.0,
    )  # fmt: skip
    target = TensorSummary(
        "target", [32], "torch.int64", "cuda:0", 32, nan=0, posinf=0, neginf=0,
        low=0, high=9, mean=4.4, std=2.9, zero_frac=0.1,
    )  # fmt: skip
    labels = [(label, 3 + (label * 7 + step) % 4) for label in range(10)]
    loss = LossSeen(
        LossFacts("NllLossBackward0", "mean", 10, -100), logits, target, labels, 0,
        2 if bad else 0, label_range=[0, 11 if bad else 9],
    )  # fmt: skip
    return Batch(
        step, int(NOW_S * 1e9), "suspicion" if bad else "first" if step < 3 else "sample",
        [images], [loss], step // 100, step % 100, 100,
    )  # fmt: skip


def histogram(step: int, what: str, name: str, at: int) -> Histogram:
    """Magnitudes that move slowly."""
    counts = np.zeros(2 * HISTOGRAM_BINS, "<u4")
    middle = 36 + at // 4
    for bin_ in range(middle - 8, middle + 8):
        share = max(1, 900 - 14 * (bin_ - middle) ** 2)
        counts[HISTOGRAM_BINS + bin_] = share
        counts[HISTOGRAM_BINS - 1 - bin_] = share // 2 + 1
    return Histogram(step, what, name, 4096, 4096, counts.tobytes(), zeros=3)


def lines(*, bad: bool) -> tuple[Output, ...]:
    """What a loop prints."""
    found = [Output(NOW_S + at, "output", f"epoch {at // 20} step {at} loss {2.3 / (at + 1):.4f}")
             for at in range(60)]  # fmt: skip
    found.append(Output(NOW_S + 60, "output", "UserWarning: lr_scheduler.step() before optimizer"))
    if bad:
        found.append(Output(NOW_S + 61, "output", "epoch 3 step 61 loss nan"))
    return (*found, Output(NOW_S + 62, "progress", " 61%|██████    | 61/100 [00:06<00:03]"))


def ranks() -> RankRows:
    """Two ranks, one of them slower."""
    rows = [
        RankRow(rank=rank, pid=48213 + rank, state="running", step=399, loss=2.1, grad_norm=0.5,
                step_s=0.098, own_s=0.09 if rank else 0.05, updated_s=NOW_S, straggles=bool(rank))
        for rank in range(2)
    ]  # fmt: skip
    return RankRows(NOW_S, rows, 2)
