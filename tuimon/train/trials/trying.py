"""Tests the likely causes of an incident, one after the other, within a bound, and publishes.

Belongs to the training thread; a trial runs after the autopsy of the same step, while what that
step began with is still kept.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import structs

from tuimon.diagnose.findings import Finding, Where
from tuimon.model.autopsy import NOT_REPRODUCED, OPERATION, OPTIMIZER, Autopsy
from tuimon.model.text import plain
from tuimon.model.trials import CONFIRMED, DIFFERS, TrialRecord
from tuimon.train.trials.bench import Bench, Incident, beginning_of, stages
from tuimon.train.trials.changes import Change, Collected
from tuimon.train.trials.clocking import Clock, Trial
from tuimon.train.trials.following import is_like
from tuimon.train.trials.judging import Judgement
from tuimon.train.trials.ordering import (
    UNCLIPPED,
    UNSCALED_FIRST,
    is_spreading,
    judge_order,
    judge_spread,
    lengths,
)
from tuimon.train.trials.planning import candidates
from tuimon.train.trials.replaying import Roots

if TYPE_CHECKING:
    from tuimon.train.track import Track

MAX_TRIALS = 12  # published in a run


class Trials:
    """All trials of a run.

    Attributes:
        made: how many were published.
    """

    def __init__(self, publish: Callable[[TrialRecord], None]) -> None:
        self.made = 0
        self._publish = publish

    @property
    def may_run(self) -> bool:
        """Whether this run may make any more."""
        return self.made < MAX_TRIALS

    def test(self, autopsy: Autopsy, incident: Incident, roots: Roots, limit_s: float) -> None:
        """Test the causes that an autopsy suggests.

        Args:
            autopsy: what was found just now.
            incident: what was kept of that step.
            roots: (prefix of its names, module) of all models.
            limit_s: how long all of it may take.
        """
        found = candidates(autopsy)
        if not self.may_run or autopsy.bad_at_scale_1 is False:
            return
        clock = Clock(limit_s)
        if autopsy.first is not None and autopsy.first.phase == OPTIMIZER:
            from tuimon.train.trials.updating import try_update

            for finding in found:
                self._tell(finding, try_update(finding, autopsy, incident, clock), clock)
            return
        if autopsy.verdict == NOT_REPRODUCED:
            self._tell_unsteady(Bench(autopsy, incident, roots, clock), autopsy, clock)
            return
        at_once = autopsy.step == 0 and autopsy.verdict == OPERATION and incident.starting
        bench = Bench(autopsy, incident, roots, clock)
        if not bench.find() or bench.differs():
            self._tell_unsteady(bench, autopsy, clock)
            return
        for finding in found:
            if self.may_run:
                self._tell(finding, bench.test(finding), clock)
        if at_once and (beginning := bench.beginning()) is not None:
            from tuimon.train.trials.restarting import overflow_trials

            for cause, trial in overflow_trials(beginning, clock):
                self._tell(_finding(cause, 0, autopsy.rank), iter([trial]), clock)
        if incident.track is not None and is_spreading(incident.clips):
            params = incident.track.plan.params
            trial = Trial(UNCLIPPED, judge_spread(params, bench.bad_gradients))
            spread = _finding("clip-nonfinite", autopsy.step, autopsy.rank)
            self._tell(spread, iter([trial]), clock)

    def _tell_unsteady(self, bench: Bench, autopsy: Autopsy, clock: Clock) -> None:
        """The step cannot be tested: do replays of it differ from each other?"""
        site = autopsy.first
        where = Where(rank=autopsy.rank)
        if bench.differing and site is not None:
            where = Where(module=site.module, op=site.op, rank=autopsy.rank)
        words, detail, is_unsteady = bench.differing or bench.repeated()
        for cause in ("backend-kernel", "hardware-fault")[: 1 + is_unsteady] if detail else ():
            finding = structs.replace(_finding(cause, autopsy.step, autopsy.rank), where=where)
            self._tell(finding, iter([Trial(words, Judgement(DIFFERS, detail))]), clock)

    def test_order(self, track: Track, scale: float, rank: int) -> None:
        """Test what a clipping has taken from gradients that still carry the loss scale."""
        if not self.may_run or not track.update.calls:
            return
        clock = Clock(0.0)
        found = lengths(track.update.calls[-1], scale)
        if found is not None:
            trial = Trial(UNSCALED_FIRST, judge_order(found, scale))
            self._tell(_finding("amp-order", track.step, rank), iter([trial]), clock)

    def test_update(self, incident: Incident, roots: Roots, rank: int, limit_s: float) -> None:
        """Test what the coming update of a training does whose loss grows."""
        from tuimon.train.trials.overshooting import Step, step_trials
        from tuimon.train.trials.restarting import restart_trials

        track = incident.track
        optimizer = None if track is None else track.optimizer
        if track is None or optimizer is None or incident.loss is None or not self.may_run:
            return
        clock = Clock(limit_s)
        for stage in stages(incident, roots, clock):
            change = Collected(incident.scale) if incident.carried else Change()
            before = clock.timed(functools.partial(stage.play, change))
            if not before.is_sound or not is_like(before, incident.loss):
                continue
            own = change.gradients if isinstance(change, Collected) else None
            loss, summed, usual = incident.loss, before.summed, incident.usual
            step = Step(optimizer, roots, stage.play, loss, summed, own, usual)
            begun = beginning_of(incident, stage, roots)
            made = restart_trials(begun, clock) if begun is not None else iter(())
            confirmed = False
            for cause, trial in made:
                confirmed = confirmed or trial.judgement.result == CONFIRMED
                self._tell(_finding(cause, track.step, rank), iter([trial]), clock)
            if not confirmed:
                for cause, trial in step_trials(step, clock):
                    self._tell(_finding(cause, track.step, rank), iter([trial]), clock)
            return

    def _tell(self, finding: Finding, trials: Iterator[Trial], clock: Clock) -> None:
        for trial in trials:
            where = finding.where
            self.made += 1
            self._publish(
                TrialRecord(
                    finding=finding.id,
                    cause=finding.cause,
                    change=plain(trial.words, 200),
                    result=trial.judgement.result,
                    detail=plain(trial.judgement.detail, 400),
                    step=finding.step,
                    rank=where.rank,
                    module=where.module,
                    op=where.op or "",
                    sample=trial.sample,
                    runs=clock.lap_runs(),
                    duration_s=clock.lap_s(),
                    time_ns=time.time_ns(),
                    is_absent=trial.judgement.is_absent,
                )
            )


def _finding(cause: str, step: int, rank: int) -> Finding:
    """A finding without an operation, as the rules would have it."""
    return Finding(
        cause=cause,
        severity="warning",
        confidence=0.0,
        status="consistent",
        step=step,
        where=Where(rank=rank),
    )
