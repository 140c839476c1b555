"""How fast a training goes, what is left of it, and where it stands in its data."""

from __future__ import annotations

import pytest

from tests.unit.view.test_store import frame_of, step
from tuimon.model.records import Facts, Hello
from tuimon.view.frame import PAUSED, DataPlace


def test_pace_and_what_is_left():
    records = [Hello(1, "i", "n", "h", 1, total_steps=101)]
    records += [step(i, step_s=0.1, data_s=0.02, cost_s=0.001) for i in range(51)]
    frame = frame_of(*records)
    assert frame.steps_per_s == pytest.approx(10)
    assert frame.eta_s == pytest.approx(5)
    assert frame.timing.step_s == pytest.approx(0.1)
    assert frame.timing.cost_frac == pytest.approx(0.01)
    assert frame.timing.forward_s is None
    stopped = frame_of(*records, state=PAUSED)
    assert stopped.steps_per_s is None and stopped.eta_s is None
    beyond = frame_of(Hello(1, "i", "n", "h", 1, total_steps=40), *records[1:])
    assert beyond.total_steps == 40 and beyond.eta_s is None, "it goes on, nobody knows how long"


def test_place_in_the_data():
    facts = Facts(batches_per_epoch=50)
    records = [step(i, step_s=0.1, data_epoch=i // 25, batch_index=2 * i % 50) for i in range(35)]
    frame = frame_of(facts, *records)
    assert frame.data is not None and frame.data.eta_s is not None
    assert (frame.data.epoch, frame.data.batch, frame.data.batches_per_epoch) == (1, 18, 50)
    # Two batches an update: the epoch before says nothing about this one.
    assert frame.data.eta_s == pytest.approx(31 / 20)
    stopped = frame_of(facts, *records, state=PAUSED).data
    assert stopped is not None and (stopped.batch, stopped.eta_s) == (18, None)
    unbounded = frame_of(*records).data
    assert unbounded is not None and (unbounded.batches_per_epoch, unbounded.eta_s) == (None, None)
    assert frame_of(step(0)).data is None
    # At the first step of a pass the one before it tells the rate.
    begun = frame_of(facts, *records, step(35, step_s=0.1, data_epoch=2, batch_index=0)).data
    assert begun is not None and begun.eta_s == pytest.approx(49 / 20)
    nobody_knows = [step(i, step_s=0.1, batch_index=2 * i % 50) for i in range(35)]
    assert frame_of(facts, *nobody_knows).data == DataPlace(None, 18, 50, pytest.approx(31 / 20))
