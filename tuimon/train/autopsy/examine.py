"""Decides when a step is examined, in which order engines look at it, and publishes the record.

An examination happens in the training thread, behind the failure boundary: nothing of it reaches
the loop, and its time is no part of the step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tuimon.model.autopsy import LEAF, OPERATION, Autopsy
from tuimon.model.text import plain
from tuimon.model.verdict import sentence
from tuimon.train.agree.link import alone_s
from tuimon.train.autopsy.doubting import Doubts, is_its_own
from tuimon.train.autopsy.graph import walk
from tuimon.train.autopsy.linemap import LineMap
from tuimon.train.autopsy.lossnodes import LossNodes
from tuimon.train.autopsy.merging import FRAMES, GRAPH, MODEL, Part, merge, part_of
from tuimon.train.autopsy.names import Names
from tuimon.train.autopsy.reruns import Closure, Reruns
from tuimon.train.autopsy.scene import TAP, Scenes
from tuimon.train.control.policy import FULL, OFF, Policy, autopsy_level
from tuimon.train.signals import is_from_handler
from tuimon.train.trials.testing import Testing

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.stats import Measured
    from tuimon.train.track import Track

MAX_AUTOPSIES = 3  # published in a run
MAX_EXAMINED = 6  # with those that showed a known site again
SKIPS_IN_A_ROW = 5  # updates left out by a GradScaler before its gradients are looked into
GRAPH_LIMIT_S = 2.0

NON_FINITE_LOSS = "non-finite-loss"
NON_FINITE_GRADIENT = "non-finite-gradient"
NON_FINITE_PARAMETER = "non-finite-parameter"
NON_FINITE_STATE = "non-finite-optimizer-state"
REQUEST = "request"


class Examiner:
    """Used by the training thread only.

    Attributes:
        policy: what may be done about a bad step.
        level: how far an autopsy goes.
        scenes: the forwards of the update that comes next.
        newest: what the newest examination found.
        requested: the next update is examined, bad or not.
        skips: updates in a row that a GradScaler left out.
        testing: tests the causes of what was found.
    """

    def __init__(self, observer: Observer, environ: Mapping[str, str] = os.environ) -> None:
        self.policy = Policy()
        self.level = autopsy_level(self.policy, environ)
        self.lines = LineMap(lambda: observer.roster.roots())
        self.nodes = LossNodes(self.lines)
        self.scenes = Scenes(observer, self.lines)
        self.newest: Autopsy | None = None
        self.requested = False
        self._observer = observer
        self._environ = environ
        self._reruns = Reruns(observer, self.scenes)
        self.testing = Testing(observer, self._reruns)
        self.testing.adopt(self.policy, self.level)
        self._sites: set[tuple[Any, ...]] = set()
        self._published = self._examined = 0
        self._in_row = False  # an incident was examined, and nothing healthy has followed it
        self._state_seen = False
        self._left_bad = False  # by this update: the next one will suffer from it
        self.skips = 0
        self._doubts = Doubts()
        self._marks: tuple[int, int] = 0, 0
        within = observer.boundary.within
        self.before_backward = within(TAP, self._before_backward)
        self.on_loss = within(TAP, self._on_loss)
        self.at_gate = within(TAP, self._at_gate)
        self.while_held = within(TAP, self._while_held)
        self.on_weights = within(TAP, self._on_weights)

    def adopt(self, policy: Policy) -> None:
        """Follow this policy from now on."""
        self.policy = policy
        self.level = autopsy_level(policy, self._environ)
        self.scenes.switch(on=self.level == FULL)
        self.lines.switch(on=self.level != OFF)
        self.testing.adopt(policy, self.level)

    def begin_closure(self, function: Any, args: tuple[Any, ...], kwargs: Any) -> Closure | None:
        """A call of `mon.forward(fn)` begins."""
        if self.level != FULL or self._observer.off:
            return None
        self._marks = self._observer.backward_calls, self._step
        self._reruns.closure = Closure(function, args, kwargs, self.scenes.generators)
        return self._reruns.closure

    def end_closure(self, closure: Closure) -> None:
        """It has returned; one that trained by itself must not run again."""
        closure.disturbs = self._marks != (self._observer.backward_calls, self._step)

    def release(self) -> None:
        """Let go of everything that belongs to the script."""
        self.scenes.drop()
        self.lines.release()
        self.nodes.drop()
        self._reruns.forget()

    # --- when -------------------------------------------------------------------------------------

    def _before_backward(self, tensors: Sequence[torch.Tensor]) -> None:
        """A backward of the script is about to begin."""
        if self.level == OFF:
            return
        with torch._C.DisableTorchFunction():  # a loss may be of a class of the script's
            self.nodes.before_backward(tensors, self.lines.before_backward(tensors))

    def _on_loss(self, tensors: Sequence[torch.Tensor], value: float | None) -> None:
        """The loss is not finite, and its graph is still alive."""
        if self._in_row or not self._affordable:
            return
        self._in_row = True
        self._examine(NON_FINITE_LOSS, losses=tensors, recorded_loss=value)

    def _at_gate(self, track: Track, measured: Measured | None) -> None:
        """Gradients are final."""
        bad = track.update.is_bad
        scaled = self._observer.scaling is track
        self.skips = self.skips + 1 if bad and scaled else 0
        incident = bad and not self._in_row and (not scaled or self.skips >= SKIPS_IN_A_ROW)
        if scaled and not bad:
            self._doubts.made(self._observer.scale_of(track))
        elif scaled and not (incident or self._in_row or self.requested) and self._affordable:
            self._doubt(track, measured)
        if (incident or self.requested) and self._affordable:
            self._in_row = self._in_row or incident
            trigger = NON_FINITE_GRADIENT if incident else REQUEST
            self._examine(trigger, track=track, measured=measured)
        self.requested = False
        self.nodes.drop()

    def _while_held(self, track: Track) -> None:
        """Asked for at a hold, when the gate had its look at this update already."""
        self.requested = False
        if self._affordable:
            self._examine(REQUEST, track=track, measured=track.update.measured)

    def _doubt(self, track: Track, measured: Measured | None) -> None:
        """A GradScaler is about to leave an update out, which may not be its own business."""
        if self._doubts.arises(self._observer.scale_of(track), measured):
            about = {"track": track, "measured": measured}
            self._in_row = self._examine(NON_FINITE_GRADIENT, doubtful=True, **about)

    def _on_weights(self, track: Track, kinds: set[str]) -> None:
        """The update has left something behind that is not finite, from finite gradients."""
        if self._in_row or self._state_seen or not self._affordable:
            return
        self._in_row = self._state_seen = self._left_bad = True
        trigger = NON_FINITE_PARAMETER if "parameter" in kinds else NON_FINITE_STATE
        self._examine(trigger, track=track, update=True)

    def conclude(self, suspicious: bool, step_s: float | None) -> None:
        """An update is over: its scene is given up."""
        self.scenes.note_step(step_s)
        if suspicious:
            self.scenes.suspect()
        self._reruns.closure = None
        self._in_row = self._in_row and (suspicious or self._left_bad)
        self._left_bad = False

    @property
    def _affordable(self) -> bool:
        if self.level == OFF or self._observer.off:
            return False
        return self._published < MAX_AUTOPSIES and self._examined < MAX_EXAMINED

    @property
    def _step(self) -> int:
        return self._observer.roster.next_step()

    # --- how --------------------------------------------------------------------------------------

    def _examine(self, trigger: str, *, doubtful: bool = False, **about: Any) -> bool:
        """Look into this step; whether that told something new.

        Args:
            doubtful: what comes of the loss scale alone is no incident, and is not told.
        """
        observer = self._observer
        began_s = time.perf_counter()
        kept = dict(about)
        was, observer.off = observer.off, True  # no tap of ours takes part in a re-run
        try:
            observer.extras.take_off()
            if about.pop("update", False):
                limit_s = self._limit_s(began_s)
                track = about["track"]
                fields = merge(_tried("", lambda: [self._reruns.update(track, limit_s)]))
                fields["optimizer"] = type(track.optimizer).__name__
            elif "losses" in about:
                fields = self._look_at_loss(began_s, **about)
            else:
                fields = self._look_at_gradients(began_s, **about)
        finally:
            observer.off = was
            took_s = time.perf_counter() - began_s
            observer.times.examined_s += took_s
            observer.times.cost_s -= took_s  # whoever has called accounts for all of its own time
        if doubtful and not is_its_own(fields):
            return False
        self._examined += 1
        autopsy = self._publish(trigger, fields, took_s)
        if autopsy is not None and trigger != REQUEST:
            self.testing.after(autopsy, kept)
        return autopsy is not None

    def _look_at_loss(
        self, began_s: float, losses: Sequence[torch.Tensor], recorded_loss: float | None
    ) -> dict[str, Any]:
        parts = _tried(GRAPH, lambda: [self._walk(losses)])
        fields: dict[str, Any] = {"recorded_loss": recorded_loss}
        if self.level == FULL:
            limit_s = self._limit_s(began_s)
            parts += _tried(MODEL, lambda: self._reruns.forwards(limit_s, fields))
            limit_s = self._limit_s(began_s)
            parts += _tried(FRAMES, lambda: self._reruns.frames(limit_s, parts, losses))
        return {**fields, **merge(parts)}

    def _look_at_gradients(
        self, began_s: float, track: Track, measured: Measured | None
    ) -> dict[str, Any]:
        parts = _tried(GRAPH, lambda: _heard(self.nodes))
        fields: dict[str, Any] = {}
        scale = self._observer.scale_of(track)
        if scale is not None:
            fields["loss_scale"] = scale
        if self.level == FULL:
            bad = {each.name for each in measured.bad} if measured is not None else set()
            limit_s = self._limit_s(began_s)
            heard = bool(parts)
            parts += _tried(
                MODEL, lambda: self._reruns.backwards(limit_s, bad, scale, fields, heard=heard)
            )
        return {**fields, **merge(parts)}

    def _walk(self, losses: Sequence[torch.Tensor]) -> Part:
        names = Names(self._observer.roster.roots())
        found = walk(
            losses,
            name_of=names.of,
            batch=self._reruns.batch(),
            lines=self.lines,
            limit_s=min(GRAPH_LIMIT_S, alone_s(self.policy.autopsy_limit_s)),
        )
        return part_of(GRAPH, found)

    def _limit_s(self, began_s: float) -> float:
        return max(0.0, began_s + alone_s(self.policy.autopsy_limit_s) - time.perf_counter())

    def _publish(self, trigger: str, fields: dict[str, Any], took_s: float) -> Autopsy | None:
        """Tell what was found; None where it was told before."""
        session = self._observer.session
        autopsy = Autopsy(
            step=self._step,
            time_ns=time.time_ns(),
            rank=session.rank,
            trigger=trigger,
            duration_s=took_s,
            **fields,
        )
        self.newest = autopsy
        site = _site(autopsy)
        if site is not None and site in self._sites:
            return None
        if site is not None:
            self._sites.add(site)
        self._published += 1
        session.publish(autopsy)
        if session.first_autopsy is None or session.first_autopsy.first is None:
            session.first_autopsy = autopsy
        severity = "critical" if autopsy.verdict in (OPERATION, LEAF) else "warning"
        session.event(
            "autopsy",
            sentence(autopsy),
            severity="info" if trigger == REQUEST else severity,
            detail=f"{autopsy.engine or 'no engine'}, {took_s:.2f} s, not part of the step",
            step=autopsy.step,
        )
        return autopsy


def _heard(nodes: LossNodes) -> list[Part]:
    """What was heard of the backward of the loss."""
    found = nodes.verdict()
    return [] if found is None else [part_of(GRAPH, found)]


def _tried(engine: str, look: Callable[[], list[Part]]) -> list[Part]:
    """What an engine says; one that fails says so, and the others go on."""
    try:
        return look()
    except Exception as error:
        if is_from_handler(error):
            raise
        text = plain(f"an engine failed: {type(error).__name__}: {error}", 200)
        return [Part(engine, notes=[text])]


def _site(autopsy: Autopsy) -> tuple[Any, ...] | None:
    """What makes two autopsies the same finding."""
    if autopsy.verdict == LEAF and autopsy.leaves:
        return autopsy.leaves[0].kind, autopsy.leaves[0].tensor.name
    first = autopsy.first
    if first is None:
        return None
    return first.op, first.phase, first.module, first.file, first.line
