"""One step that can be replayed, and what is tried on it.

Belongs to the training thread; everything runs on copies.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tuimon.diagnose.findings import Finding
from tuimon.model.autopsy import Autopsy
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE, REFUTED
from tuimon.model.units import number
from tuimon.train.autopsy.reruns import Closure
from tuimon.train.autopsy.scene import Call
from tuimon.train.trials.bisecting import guilty_samples
from tuimon.train.trials.changes import Change, Finite, Unscaled, Without
from tuimon.train.trials.clocking import Clock, Trial
from tuimon.train.trials.following import FrameStage, is_like, starts
from tuimon.train.trials.guarding import Guarded, spot_of
from tuimon.train.trials.hiding import Hidden
from tuimon.train.trials.judging import Judgement, judge
from tuimon.train.trials.planning import BY_SAMPLES, OF_SAMPLES, changes_for
from tuimon.train.trials.repeating import Repeated
from tuimon.train.trials.replaying import ClosureStage, ModelStage, Outcome, Roots, Stage

if TYPE_CHECKING:
    from tuimon.model.samples import StartingWeights
    from tuimon.train.account import ClipCall
    from tuimon.train.track import Track
    from tuimon.train.trials.restarting import Beginning

REPLAYED = "the step was replayed without a change"
REPLAYS = 4  # of one step, to see whether they differ
FRAMES_SHARE = 0.4  # of the time, for finding out whether the loss code can be followed


class Incident(NamedTuple):
    """What went wrong, and what was kept of the step.

    Attributes:
        calls: kept forwards, oldest first.
        closure: the newest call of `mon.forward(fn)` that may run again.
        is_loss: the loss is not finite; else gradients are not.
        loss: what the step showed, without a scale; None where it is not known.
        scale: what the gradients carry.
        stray_scale: of a GradScaler that this update goes past; None without one.
        carried: gradients that an earlier update has used are in those of this one.
        usual: norm of the gradient before it grew; None where it did not.
        starting: what the weights were like before the first update, where that is known.
        track: whose update, for an incident in the optimizer.
        clips: what was clipped of the gradients.
    """

    calls: Sequence[Call]
    closure: Closure | None
    is_loss: bool
    loss: float | None
    scale: float | None
    track: Track | None = None
    clips: Sequence[ClipCall] = ()
    stray_scale: float | None = None
    carried: bool = False
    usual: float | None = None
    starting: StartingWeights | None = None


class Bench:
    """One step that can be replayed, and what was tried on it.

    Attributes:
        differing: (what was done, how what came of it differs, whether by chance), if it does.
        bad_gradients: how many are not finite in the replay without a change.
    """

    def __init__(self, autopsy: Autopsy, incident: Incident, roots: Roots, clock: Clock) -> None:
        self._autopsy = autopsy
        self._incident = incident
        self._roots = roots
        self._clock = clock
        site = autopsy.first if autopsy.verdict == "operation" else None
        self._watched = None if site is None else Guarded(spot_of(site))
        self._stage: Stage | None = None
        self._guilty: list[int] | None = None
        self.bad_gradients = 0
        self.differing: tuple[str, str, bool] | tuple[()] = ()

    def find(self) -> bool:
        """Find a way to replay the step that shows what was wrong with it."""
        for stage in self._stages():
            change = self._watched or Change()
            outcome = self._clock.timed(functools.partial(stage.play, change))
            has_loss = not isinstance(stage, ModelStage)
            if outcome.is_bad and (not has_loss or is_like(outcome, self._incident.loss)):
                self._stage = stage
                self.bad_gradients = sum(each.startswith("gradient of") for each in outcome.bad)
                return True
        return False

    def differs(self) -> bool:
        """Whether a replay without a change, or the operation alone, gives something else."""
        if self._clock.spent():
            return False
        repeated = Repeated(self._watched.spot) if self._watched is not None else None
        outcome = self._play(repeated or Change())
        if outcome.is_sound:
            self.differing = REPLAYED, "of two replays one was finite, and one was not", True
        elif repeated is not None and repeated.differs:
            self.differing = repeated.words, repeated.differs, repeated.is_unsteady
        return bool(self.differing)

    def repeated(self) -> tuple[str, str, bool]:
        """(what was done, how replays of the step without a change differ, True)."""
        for stage in self._stages():
            outcomes: list[Outcome] = []
            while len(outcomes) < REPLAYS and not self._clock.spent():
                outcomes.append(self._clock.timed(functools.partial(stage.play, Change())))
                if outcomes[-1].problem:
                    break
            if outcomes and not outcomes[-1].problem:
                bad = sum(each.is_bad for each in outcomes)
                differ = (
                    f"{bad} of {len(outcomes)} were not finite" if 0 < bad < len(outcomes) else ""
                )
                return REPLAYED, differ, True
        return "", "", False

    def beginning(self) -> Beginning | None:
        """What it takes to begin the training anew, once a way to replay was found."""
        stage = self._stage
        return None if stage is None else beginning_of(self._incident, stage, self._roots)

    def _stages(self) -> Iterator[Stage]:
        incident = self._incident
        yield from stages(incident, self._roots, self._clock)
        for call in reversed(incident.calls if incident.closure is None else ()):
            model = ModelStage(call, self._roots, backward=not incident.is_loss)
            if model.is_possible and not self._clock.spent():
                yield model

    def test(self, finding: Finding) -> Iterator[Trial]:
        """The trials of one cause: until one confirms it, and which sample is guilty of it."""
        cause = finding.cause
        told: list[Trial] = []
        for change in changes_for(cause, self._autopsy):
            if self._clock.spent():
                return
            judgement = self._try(change)
            if judgement.result == CONFIRMED and cause == "fp16-overflow":
                judgement = self._without_scale() or judgement
            trial = Trial(change.words, judgement)
            told.append(trial)
            if trial.judgement.result == CONFIRMED:
                break
        confirmed = any(trial.judgement.result == CONFIRMED for trial in told)
        unmet = self._watched is not None and not self._watched.seen
        if not told and cause in OF_SAMPLES:
            yield from self._samples()
        elif unmet and not confirmed and cause in BY_SAMPLES and finding.where.sample is None:
            yield from self._before_the_model(told)
        elif confirmed and cause in BY_SAMPLES and finding.where.sample is None:
            guilty = self._find_guilty()
            last = told.pop()
            yield from told
            if guilty:
                more = f"{last.judgement.detail}; so it is without {_listed(guilty)} of the batch"
                last = last._replace(judgement=Judgement(CONFIRMED, more), sample=guilty[0])
            yield last
        else:
            yield from told

    def _before_the_model(self, told: list[Trial]) -> Iterator[Trial]:
        """The operation ran before the step, on what became the batch: which sample is it?"""
        guilty = self._find_guilty()
        for trial in told:
            if not guilty:
                yield trial
                continue
            detail = f"it ran before the step did, which is finite without {_listed(guilty)}"
            yield trial._replace(judgement=Judgement(NO_DIFFERENCE, detail), sample=guilty[0])

    def _try(self, change: Change) -> Judgement:
        assert self._stage is not None
        if isinstance(change, Hidden):
            self._play(change)
            if not change.conclude():
                why = "a value that the operation cannot take is not hidden by any selection"
                return Judgement(REFUTED if change.is_open else NO_DIFFERENCE, why)
        watched = None if isinstance(change, Finite) else self._watched
        return judge(watched, change, self._play(change))

    def _without_scale(self) -> Judgement | None:
        """What refutes a number format: it holds the step, but for a scale nobody takes back."""
        scale = self._incident.stray_scale
        if scale is None or self._clock.spent() or not self._play(Unscaled(scale)).is_sound:
            return None
        detail = (
            f"in float32 the step is finite, and so it is in its own format without the loss "
            f"scale of {number(scale)}, which no scaler takes back from this update"
        )
        return Judgement(REFUTED, detail)

    def _samples(self) -> Iterator[Trial]:
        """A cause that says: it is the sample."""
        if self._watched is not None and not self._watched.born:
            return
        guilty = self._find_guilty()
        batch = self._stage.batch if self._stage is not None else 0
        if guilty:
            words = Without(guilty, batch).words
            detail = f"without {_listed(guilty)} of {batch} the step is finite"
            yield Trial(words, Judgement(CONFIRMED, detail), guilty[0])
        elif batch > 1 and not self._clock.spent():
            words = "samples of the batch were left out"
            detail = f"there is no small set of the {batch} samples without which it is finite"
            yield Trial(words, Judgement(NO_DIFFERENCE, detail))

    def _find_guilty(self) -> list[int]:
        """The guilty samples of the batch, searched for once."""
        if self._guilty is None:
            assert self._stage is not None
            batch = self._stage.batch
            self._guilty = guilty_samples(batch, lambda left_out: self._heals(left_out, batch))
        return self._guilty

    def _heals(self, left_out: Sequence[int], batch: int) -> bool | None:
        if self._clock.spent():
            return None
        if len(left_out) >= batch:
            return False
        change = Without(left_out, batch)
        outcome = self._play(change)
        return None if outcome.problem else outcome.is_sound and change.count > 0

    def _play(self, change: Change) -> Outcome:
        stage = self._stage
        assert stage is not None
        return self._clock.timed(functools.partial(stage.play, change))


def stages(incident: Incident, roots: Roots, clock: Clock) -> Iterator[Stage]:
    """Ways to compute the loss of a step again, the surest first."""
    if incident.closure is not None:
        yield ClosureStage(incident.closure, roots, incident.scale)
        return
    for start in starts():
        if clock.spent(FRAMES_SHARE):
            return
        stage = FrameStage(start, incident.calls, roots, scale=incident.scale, expired=clock.spent)
        yield stage
        if 0 < stage.unused < len(incident.calls):
            yield stage.later()


def beginning_of(incident: Incident, stage: Stage, roots: Roots) -> Beginning | None:
    """What it takes to begin the training anew."""
    from tuimon.train.trials.restarting import Beginning, begun_of

    optimizer = None if incident.track is None else incident.track.optimizer
    if incident.starting is None:
        return None
    begun = begun_of(incident.starting)
    return Beginning(optimizer, roots, stage.play, stage.batch, begun)


def _listed(samples: Sequence[int]) -> str:
    return f"sample{'s' if len(samples) > 1 else ''} {', '.join(map(str, samples))}"
