"""The search for guilty samples asks little and never names more than what is needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuimon.train.trials.bisecting import MAX_GUILTY, MAX_RUNS, guilty_samples


class Batch:
    """Sound without its guilty samples."""

    def __init__(self, guilty: set[int]) -> None:
        self.guilty = guilty
        self.runs = 0

    def heals(self, left_out: Sequence[int]) -> bool:
        self.runs += 1
        return self.guilty <= set(left_out)


@given(st.integers(2, 4096), st.data())
def test_one_guilty_sample_is_found(count: int, data: st.DataObject) -> None:
    guilty = data.draw(st.integers(0, count - 1))
    batch = Batch({guilty})
    assert guilty_samples(count, batch.heals) == [guilty]
    assert batch.runs <= 2 * count.bit_length() + 1


@pytest.mark.parametrize("guilty", [{0, 1}, {3, 60}, {5, 17, 40}])
def test_a_few_are_found(guilty: set[int]) -> None:
    assert guilty_samples(64, Batch(guilty).heals) == sorted(guilty)


def test_many_are_no_small_set() -> None:
    batch = Batch(set(range(0, 64, 64 // (MAX_GUILTY + 1))))
    assert guilty_samples(64, batch.heals) == []
    assert batch.runs <= MAX_RUNS


def test_what_no_sample_is_guilty_of_names_none() -> None:
    """The whole batch is bad, or the step fails whatever it is given."""
    assert guilty_samples(64, Batch(set(range(64))).heals) == []
    assert guilty_samples(64, lambda _: False) == []
    assert guilty_samples(1, lambda _: True) == []


def test_an_end_of_the_time_names_none() -> None:
    answers = iter([False, True, None])
    assert guilty_samples(64, lambda _: next(answers)) == []
