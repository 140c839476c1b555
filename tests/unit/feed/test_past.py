"""What is kept of readings, batches and samples: the whole time, within bounds."""

from __future__ import annotations

from tuimon.feed.past import MAX_BATCHES, MOST, Lists, Past, ends_of
from tuimon.model.records import BadTensor, Batch, Step, System
from tuimon.model.samples import Activation, Activations, ParameterSample, ParameterSamples


def _samples(step: int, name: str = "a.weight") -> ParameterSamples:
    return ParameterSamples(step, 0, [ParameterSample(name, grad_absmax=float(step))])


def test_a_long_past_covers_the_whole_time_and_keeps_the_newest() -> None:
    past = Past()
    for step in range(5000):
        past.see(_samples(step))
        past.see(Batch(step, step))
    found = past.parameter("a.weight")
    steps = [step for step, _ in found]
    assert len(found) <= MOST and steps[0] == 0 and steps[-50:] == list(range(4950, 5000))
    assert steps == sorted(set(steps)) and steps[len(steps) // 4] < 4900
    kept = [batch.step for batch in past.batches]
    assert len(kept) <= MAX_BATCHES and kept[0] == 0 and kept[-20:] == list(range(4980, 5000))


def test_many_names_share_one_bound() -> None:
    lists: Lists[int] = Lists(100)
    for step in range(50):
        for name in range(40):
            lists.add(f"p{name}", step, step)
    assert sum(len(lists.of(name)) for name in lists) <= 200
    assert lists.of("p39")[-1] == (49, 49) and not lists.of("p0")


def test_going_back_forgets_what_is_no_more() -> None:
    past = Past()
    past.see(System(1.0))
    for step in (1, 2, 3):
        past.see(_samples(step))
        past.see(Activations(step, [Activation("a", 1, 4)]))
        past.see(Step(step, 0, bad=[BadTensor("gradient", "a.weight", 2, 0, 1, 4)]))
    version = past.version
    past.cut(2)
    assert past.version > version and len(past.readings) == 1
    assert [step for step, _ in past.parameter("a.weight")] == [1]
    assert [step for step, _ in past.activation("a")] == [1]
    assert [(step, each.total) for step, each in past.bad("a.weight")] == [(1, 3)]
    assert not past.parameter("b")


def test_ends_are_the_first_few_and_the_newest() -> None:
    assert ends_of(range(10), 20) == list(range(10))
    assert ends_of(range(100), 6, first=2) == [0, 1, 96, 97, 98, 99]
    assert ends_of(range(100), 3, first=0) == [97, 98, 99]


def test_another_reader_comes_to_the_same_knowledge() -> None:
    past, late = Past(share=0.1), Past()
    for step in range(300):
        past.see(_samples(step))
        past.see(Activations(step, [Activation("a", 1, 4)]))
    for record in past.samples():
        late.see(record)
    late.see(_samples(299))  # the newest is told twice
    assert list(late.parameter("a.weight")) == list(past.parameter("a.weight"))
    assert list(late.activation("a")) == list(past.activation("a"))
