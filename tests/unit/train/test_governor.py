"""The governor on simulated durations: the share holds, it adapts both ways, nothing starves."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuimon.train.samples.governor import (
    ALLOWANCE_S,
    FIRST_SAMPLE,
    FORCED_GAP,
    LONGEST_STRIDE,
    TRIAL_STRIDE,
    TRIALS,
    Governor,
)

BUDGET = 0.005


class Loop:
    """A training whose durations are told: (step, s) -> s."""

    def __init__(
        self, step_s: Callable[[int], float], cost_s: Callable[[int], float], governor: Governor
    ) -> None:
        self.governor = governor
        self.sampled: list[int] = []
        self.costs: list[float] = []
        self.times: list[float] = []
        self._step_s, self._cost_s = step_s, cost_s
        self._armed = False
        self._at = 0

    def run(self, steps: int, suspicious: Callable[[int], bool] = lambda step: False) -> Loop:
        for _ in range(steps):
            at = self._at
            cost_s = 0.0
            if self._armed:
                cost_s = self._cost_s(at)
                self.sampled.append(at)
                self.governor.sampled(cost_s)
            self.costs.append(cost_s)
            self.times.append(self._step_s(at))
            self._armed = self.governor.step(self.times[-1], suspicious=suspicious(at))
            self._at += 1
        return self

    def share(self, first: int = 0) -> float:
        return sum(self.costs[first:]) / sum(self.times[first:])


def quick() -> Governor:
    return Governor(BUDGET, rest_s=0.0)


@pytest.mark.parametrize(
    ("step_s", "cost_s", "stride"),
    [(0.0276, 0.003, 22), (0.47, 0.0094, 4), (0.0369, 0.0066, 36), (0.0003, 0.0002, 134)],
)
def test_the_stride_is_cost_by_budget(step_s: float, cost_s: float, stride: int) -> None:
    loop = Loop(lambda _: step_s, lambda _: cost_s, quick()).run(4000)
    assert loop.governor.stride == stride == math.ceil(cost_s / (BUDGET * step_s))
    assert loop.share(200) <= BUDGET * 1.05
    assert loop.governor.share_frac == pytest.approx(BUDGET, rel=0.25)


def test_the_first_samples_come_early_and_their_price_is_not_held_against_the_rest() -> None:
    loop = Loop(lambda _: 0.001, lambda at: 0.04 if at < 10 else 0.0001, quick()).run(500)
    assert loop.sampled[0] == FIRST_SAMPLE
    assert [b - a for a, b in zip(loop.sampled, loop.sampled[1:TRIALS], strict=False)] == [
        TRIAL_STRIDE
    ] * (TRIALS - 1)
    assert loop.governor.stride == 20


@pytest.mark.parametrize("step_s", [0.0003, 0.02, 0.5])
@pytest.mark.parametrize("cost_share", [0.2, 1.0, 3.0])
def test_a_run_of_any_length_borrows_little(step_s: float, cost_share: float) -> None:
    cost_s = step_s * cost_share
    loop = Loop(lambda _: step_s, lambda _: cost_s, Governor(BUDGET)).run(900)
    spent_s = itertools.accumulate(loop.costs)
    had_s = itertools.accumulate(loop.times)
    for spent, had in zip(spent_s, had_s, strict=True):
        assert spent <= BUDGET * had + ALLOWANCE_S + cost_s


def test_a_training_that_becomes_slower_is_sampled_more_often_and_back() -> None:
    loop = Loop(lambda at: 0.01 if at < 2000 or at > 4000 else 0.1, lambda _: 0.005, quick())
    assert loop.run(2000).governor.stride == 100
    assert loop.run(2000).governor.stride in (10, 11)
    assert loop.run(2000).governor.stride in (100, 101)


def test_samples_that_become_dearer_become_rarer() -> None:
    loop = Loop(lambda _: 0.01, lambda at: 0.001 if at < 3000 else 0.01, quick())
    assert loop.run(3000).governor.stride == 20
    assert loop.run(3000).governor.stride == 200
    assert loop.share(200) <= BUDGET * 1.05


def test_one_long_pause_buys_no_samples() -> None:
    loop = Loop(lambda at: 60.0 if at == 1000 else 0.01, lambda _: 0.005, quick()).run(2000)
    assert 100 >= loop.governor.stride >= 99
    after = [at for at in loop.sampled if at > 1000]
    assert all(b - a >= 90 for a, b in itertools.pairwise(after))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    step_s=st.floats(2e-4, 0.5),
    cost_share=st.floats(0.02, 4.0),
    noise=st.floats(0.0, 0.8),
)
def test_on_noisy_durations_the_share_holds_and_nothing_starves(
    seed: int, step_s: float, cost_share: float, noise: float
) -> None:
    rng = random.Random(seed)

    def noisy(mean: float) -> Callable[[int], float]:
        return lambda _: mean * rng.lognormvariate(0.0, noise)

    loop = Loop(noisy(step_s), noisy(step_s * cost_share), quick()).run(6000)
    settled = loop.sampled[TRIALS] if len(loop.sampled) > TRIALS else 0
    gaps = [b - a for a, b in zip(loop.sampled, [*loop.sampled[1:], 6000], strict=True)]
    assert max(gaps) <= LONGEST_STRIDE
    if LONGEST_STRIDE not in gaps:
        assert loop.share(settled + 1) <= BUDGET * 1.35


@pytest.mark.parametrize("disturbed", [1, 2, 3, 7])
def test_one_disturbed_sample_is_not_held_against_the_rest(disturbed: int) -> None:
    costs = (1.0 if taken == disturbed else 0.001 for taken in itertools.count())
    loop = Loop(lambda _: 0.01, lambda _: next(costs), quick()).run(1000)
    assert 20 <= loop.governor.stride <= 23
    assert max(b - a for a, b in itertools.pairwise(loop.sampled)) <= 80


def test_what_no_stride_can_pay_for_is_sampled_all_the_same_and_said() -> None:
    loop = Loop(lambda _: 0.0001, lambda _: 0.01, quick()).run(5000)
    assert loop.governor.stride == LONGEST_STRIDE
    assert loop.governor.is_over_budget
    assert len(loop.sampled) >= 4
    assert not Loop(lambda _: 0.1, lambda _: 0.01, quick()).run(500).governor.is_over_budget


def test_samples_come_no_faster_than_anybody_reads() -> None:
    loop = Loop(lambda _: 0.01, lambda _: 1e-7, Governor(BUDGET, rest_s=0.25)).run(500)
    assert loop.governor.stride == 25
    assert Loop(lambda _: 2.0, lambda _: 1e-7, Governor(BUDGET)).run(50).governor.stride == 1


def test_a_shorter_longest_stride_is_kept_whatever_it_costs() -> None:
    loop = Loop(lambda _: 0.001, lambda _: 0.1, Governor(BUDGET, longest=50)).run(600)
    assert loop.governor.stride == 50
    assert loop.governor.is_over_budget


def test_nothing_to_sample_is_tried_again_rarely() -> None:
    governor = quick()
    asked = []
    for step in range(3000):
        if governor.step(0.01):
            asked.append(step)
            governor.rest()
    assert asked == [1, 1001, 2001]
    assert governor.share_frac is None


def test_a_fresh_suspicion_forces_one_sample() -> None:
    loop = Loop(lambda _: 0.01, lambda _: 0.01, quick()).run(1000)
    before = list(loop.sampled)
    loop.run(20, suspicious=lambda at: at >= 1003)
    assert [at for at in loop.sampled if at not in before] == [1004]


def test_suspicions_that_come_and_go_force_few_samples() -> None:
    loop = Loop(lambda _: 0.01, lambda _: 0.05, quick()).run(1001, lambda at: at % 2 == 0)
    assert len(loop.sampled) <= 1001 / FORCED_GAP + 3


def test_without_a_budget_nothing_is_sampled() -> None:
    loop = Loop(lambda _: 0.01, lambda _: 0.01, Governor(0.0)).run(3000, lambda at: at == 7)
    assert loop.sampled == [] and loop.governor.stride is None


def test_unknown_and_absurd_step_times_are_survived() -> None:
    governor = quick()
    for step_s in (None, math.nan, math.inf, -1.0, 0.0, 0.0, 0.01):
        governor.step(step_s)
    governor.sampled(0.0)
    governor.sampled(0.002)
    assert governor.stride is not None and 1 <= governor.stride <= LONGEST_STRIDE


def test_a_short_run_of_quick_steps_has_samples_too() -> None:
    loop = Loop(lambda _: 0.001, lambda _: 1e-7, Governor(BUDGET)).run(1200)
    assert loop.sampled[:5] == [2, 18, 34, 68, 136]
    gaps = [b - a for a, b in itertools.pairwise(loop.sampled)]
    assert max(gaps) in (249, 250), "later ones rest as long as a reader looks"
