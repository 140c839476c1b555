"""When causes are tested in a training, and how what came of it is told.

Belongs to the training thread. The trials themselves are loaded with the first one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tuimon.model.autopsy import Autopsy
from tuimon.model.text import plain
from tuimon.model.trials import CONFIRMED, TrialRecord
from tuimon.train.agree.link import alone_s
from tuimon.train.autopsy.reruns import Reruns
from tuimon.train.control.policy import FULL, Policy
from tuimon.train.crash import origin_of
from tuimon.train.trials.growth import Growth

if TYPE_CHECKING:
    from tuimon.model.samples import StartingWeights
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track
    from tuimon.train.trials.bench import Incident
    from tuimon.train.trials.trying import Trials

MAX_GROWTHS = 2  # times that a growing loss is looked into, of a run


class Testing:
    """All testing of a run.

    Attributes:
        growth: sees whether the loss grows; None where nothing would follow from that.
        waits: updates of the primary optimizer are to be told before they happen.
    """

    __test__ = False  # no class of tests

    def __init__(self, observer: Observer, reruns: Reruns) -> None:
        self.growth: Growth | None = None
        self.waits = False
        self._saw_order = False
        self._observer = observer
        self._reruns = reruns
        self._policy = Policy()
        self._is_on = False
        self._growths = 0
        self._trials: Trials | None = None
        within = observer.boundary.within
        self._on_growth = within("trials", self._look_into)
        self._on_order = within("trials", self._look_at_order)

    def adopt(self, policy: Policy, level: str) -> None:
        """Follow this policy from now on."""
        self._policy = policy
        self._is_on = policy.trials and level == FULL
        self.growth = Growth() if self._is_on and self._growths < MAX_GROWTHS else None
        self.waits = self._is_on

    def after(self, autopsy: Autopsy, about: Mapping[str, Any]) -> None:
        """Test the causes that an autopsy suggests, on copies of what its step began with."""
        if not self._is_on:
            return
        loss = about.get("recorded_loss", self._observer.losses.last)
        incident = self._incident(about.get("track"), loss, is_loss="losses" in about)
        limit_s = alone_s(self._policy.trials_limit_s)
        self._apart(lambda trials: trials.test(autopsy, incident, self._roots(), limit_s))

    def after_crash(self, error: BaseException, crash: Any) -> None:
        """The script has failed, and its frames still live: was it for its labels?"""
        if not self._is_on or crash.out_of_memory:
            return
        from tuimon.train.trials.clamping import label_trial

        trial = label_trial(origin_of(error), crash)
        if trial is not None:
            self._tell(trial)

    def before_update(self, track: Track, loss: float | None) -> None:
        """An update of the primary optimizer is about to happen."""
        growth, measured = self.growth, track.update.measured
        if track.update.scaled:
            if track.update.calls and not self._saw_order:
                self._on_order(track)
            return
        if growth is not None and measured is not None and growth.rises(loss, measured.total):
            self._on_growth(track)

    def _look_at_order(self, track: Track) -> None:
        """Gradients were clipped and still carry the loss scale: once is enough to know."""
        self._saw_order = True
        scale = self._observer.scale_of(track)
        if scale is not None:
            self._apart(lambda trials: trials.test_order(track, scale, self._rank()))

    def _look_into(self, track: Track) -> None:
        """The loss grows, and is finite still: what the coming update would do is looked into."""
        self._growths += 1
        usual = None if self.growth is None else self.growth.usual
        if self._growths >= MAX_GROWTHS:
            self.growth = None
        loss = self._observer.losses.last
        incident = self._incident(track, loss, is_loss=False, usual=usual)
        limit_s = alone_s(self._policy.trials_limit_s)
        self._apart(
            lambda trials: trials.test_update(incident, self._roots(), self._rank(), limit_s)
        )

    def _incident(
        self,
        track: Track | None,
        loss: float | None,
        *,
        is_loss: bool,
        usual: float | None = None,
    ) -> Incident:
        from tuimon.train.trials.bench import Incident

        closure = self._reruns.closure
        scale = None if track is None else self._observer.scale_of(track)
        amp = self._observer.amp
        marks = None if track is None else self._observer.loop.clearing.of(track)
        return Incident(
            calls=list(self._observer.scenes.calls),
            closure=None if closure is None or closure.disturbs else closure,
            is_loss=is_loss,
            loss=loss,
            scale=scale,
            track=track,
            clips=() if track is None else list(track.update.calls),
            stray_scale=None if track is None or scale is not None else amp.stray(track),
            usual=usual,
            starting=self._observer.extras.starting or self._starting(),
            carried=marks is not None and any(marks.grew),
        )

    def _starting(self) -> StartingWeights | None:
        """The weights as they are before the first update."""
        from tuimon.train.autopsy.names import Names
        from tuimon.train.facts.beginning import starting_weights
        from tuimon.train.layers import unwrap

        if self._observer.roster.next_step() > 0:
            return None
        roots = [(prefix, unwrap(root)) for prefix, root in self._roots()]
        return starting_weights(Names(roots).parameters.items(), roots)

    def _apart(self, test: Callable[[Trials], None]) -> None:
        """No tap of ours takes part, the time is no part of the step, and failures are told."""
        from tuimon.train.trials.trying import Trials

        observer = self._observer
        if self._trials is None:
            self._trials = Trials(self._tell)
        began_s = time.perf_counter()
        was, observer.off = observer.off, True
        try:
            observer.extras.take_off()
            test(self._trials)
        except Exception as error:  # what the autopsy has found stands
            text = plain(f"causes were not tested: {type(error).__name__}: {error}", 200)
            observer.session.event("trial-failed", text, severity="warning")
        finally:
            observer.off = was
            took_s = time.perf_counter() - began_s
            observer.times.examined_s += took_s
            observer.times.cost_s -= took_s

    def _tell(self, trial: TrialRecord) -> None:
        session = self._observer.session
        session.publish(trial)
        if trial.result == CONFIRMED and not trial.op:
            self.growth = None  # why the loss grows is known
        text = f"{trial.cause} {trial.result}: {trial.change}"
        session.event("trial", text, detail=trial.detail, step=trial.step)

    def _roots(self) -> list[tuple[str, Any]]:
        return self._observer.roster.roots()

    def _rank(self) -> int:
        return self._observer.session.rank
