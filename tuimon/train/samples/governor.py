"""Decides which steps carry sampled extras, so that these stay within a share of step time.

Pure arithmetic on durations that it is told; owns no clock and touches nothing of the training.
"""

from __future__ import annotations

import math

FIRST_SAMPLE = 2  # the update before which the first sample begins; earlier ones allocate
TRIALS = 3  # samples at the beginning that come early, because their cost is not yet known
TRIAL_STRIDE = 16  # the longest stride between those
# What those may cost beyond the budget, together: a run of any length has spent at most this, and
# its newest sample, on top of its share. Nobody notices a twentieth of a second, once.
ALLOWANCE_S = 0.05
LONGEST_STRIDE = 1000  # a sample every so many steps, whatever it costs: nothing starves for ever
FORCED_GAP = 50  # a suspicion forces no sample within so many steps of the last forced one

# Samples follow each other no faster, however cheap: nobody reads faster. In a young run they may,
# as long as each comes after twice as many steps as the one before: a short run has samples too.
REST_S = 0.25

_SMOOTH_COST = 0.3  # a new cost's weight in the moving average: a handful of samples settle it
_SMOOTH_STEP = 0.05  # a new step time's weight, once that many are known
_MAX_STEP = 2.0  # a step counts for at most so many average ones: an evaluation is no step
_MAX_COST = 4.0  # likewise a sample: while it ran, the machine may have done something else
_WINDOW_STEPS = 1000  # the share is that of about so many newest steps


class Governor:
    """Counts the steps of the primary optimizer. Used by the training thread only.

    Attributes:
        budget_frac: share of step time that samples may cost; 0 switches them off.
        longest: the longest stride.
        rest_s: samples follow each other no faster than this, but for those of a young run.
        stride: steps from the last sample to the next one; None when there are none.
    """

    def __init__(
        self, budget_frac: float, *, longest: int = LONGEST_STRIDE, rest_s: float = REST_S
    ) -> None:
        self.budget_frac = budget_frac
        self.longest = longest
        self.rest_s = rest_s
        self.stride: int | None = None if budget_frac <= 0 else TRIAL_STRIDE
        self._until_next = FIRST_SAMPLE
        self._samples = 0
        self._steps = 0
        self._since_forced = FORCED_GAP
        self._suspicious = False
        self._step_s: float | None = None
        self._cost_s: float | None = None
        self._window_steps = 0.0
        self._window_cost_s = 0.0

    @property
    def cost_s(self) -> float | None:
        """Moving average of what one sample costs; None before the first."""
        return self._cost_s

    @property
    def step_s(self) -> float | None:
        """Moving average of a step without samples; None before the first."""
        return self._step_s

    @property
    def share_frac(self) -> float | None:
        """What the samples of the newest steps cost as a share of step time."""
        if self._step_s is None or self._cost_s is None or not self._window_steps:
            return None
        return self._window_cost_s / (self._window_steps * self._step_s)

    @property
    def is_over_budget(self) -> bool:
        """Whether one sample costs more than the budget of the longest stride."""
        return self.stride is not None and self._strides_for(self._cost_s or 0.0) > self.longest

    def step(self, step_s: float | None, *, suspicious: bool = False) -> bool:
        """A step has ended; whether the next one is to be sampled.

        Args:
            step_s: how long it took without samples and waits; None when that is not known.
            suspicious: it holds a value that is not finite. A fresh suspicion forces a sample.
        """
        if self.stride is None:
            return False
        if step_s is not None:
            self._learn_step(step_s)
        self._steps += 1
        self._until_next -= 1
        self._since_forced += 1
        fresh = suspicious and not self._suspicious and self._since_forced >= FORCED_GAP
        self._suspicious = suspicious
        if fresh:
            self._since_forced = 0
        return fresh or self._until_next <= 0

    def sampled(self, cost_s: float) -> None:
        """A sample has been taken for `cost_s`; plans the next one."""
        if self.stride is None:
            return
        self._samples += 1
        self._window_cost_s += cost_s
        if self._cost_s is None:
            self._cost_s = cost_s
        cost_s = min(cost_s, _MAX_COST * self._cost_s)
        if self._samples <= TRIALS:
            # The first sample also pays for what later ones find in place.
            self._cost_s = min(cost_s, self._cost_s)
        else:
            self._cost_s += _SMOOTH_COST * (cost_s - self._cost_s)
        # A dear sample is paid off before the next one, so that the share holds at any time.
        wanted = self._strides_for(max(self._cost_s, cost_s))
        if self._samples < TRIALS:
            owed = self._strides_for(self._window_cost_s - ALLOWANCE_S) - self._steps
            wanted = min(wanted, max(TRIAL_STRIDE, owed))
        if self._step_s:
            wanted = max(wanted, min(math.ceil(self.rest_s / self._step_s), self._young()))
        self._plan(wanted)

    def _young(self) -> int:
        """Steps to the next sample that a young run may have, whatever the time."""
        return TRIAL_STRIDE if self._samples < TRIALS else max(TRIAL_STRIDE, self._steps)

    def rest(self) -> None:
        """There was nothing to sample; the next try comes as late as it may."""
        if self.stride is not None:
            self._plan(self.longest)

    def _plan(self, wanted: float) -> None:
        self.stride = self._until_next = int(max(1, min(wanted, self.longest)))

    def _strides_for(self, cost_s: float) -> float:
        """Steps whose budget pays for `cost_s`."""
        if cost_s <= 0:
            return 1
        if not self._step_s:
            return TRIAL_STRIDE
        return math.ceil(min(cost_s / (self.budget_frac * self._step_s), 1e9))

    def _learn_step(self, step_s: float) -> None:
        if not (math.isfinite(step_s) and step_s >= 0):
            return
        self._window_steps += 1
        mean = self._step_s
        if not mean:
            self._step_s = step_s
        else:
            weight = max(_SMOOTH_STEP, 1 / self._window_steps)
            self._step_s = mean + weight * (min(step_s, _MAX_STEP * mean) - mean)
        if self._window_steps > _WINDOW_STEPS:
            keep = 1 - 1 / _WINDOW_STEPS
            self._window_steps *= keep
            self._window_cost_s *= keep
