"""The state of watching in one process: who is watched, what happened since the last update.

Taps write here, tracks read. Everything is done by the training thread; the control thread reads
`layers` and `clipping` only, each replaced as a whole or a single word.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from tuimon.model.records import CLIP_USER, Scalars
from tuimon.model.text import plain
from tuimon.train import modes
from tuimon.train.account import Clips, Losses, Times, host_scale
from tuimon.train.autopsy.examine import Examiner
from tuimon.train.boundary import Boundary
from tuimon.train.control.breaks import Breaks
from tuimon.train.control.clip import Clipping
from tuimon.train.control.controls import Controls
from tuimon.train.control.gate import Gate
from tuimon.train.control.policy import Policy
from tuimon.train.control.rates import Rates
from tuimon.train.control.snapshots import Snapshots
from tuimon.train.facts.loop import Loop
from tuimon.train.facts.scaling import Scaling
from tuimon.train.inside import Inside
from tuimon.train.roster import Roster
from tuimon.train.samples.extras import TAP as EXTRAS_TAP
from tuimon.train.samples.extras import Extras
from tuimon.train.session import Session
from tuimon.train.stats import host_number
from tuimon.train.taps.batch import Batches

if TYPE_CHECKING:
    from tuimon.model.ledger import Ledger
    from tuimon.train.control.dump import Outcome
    from tuimon.train.control.repeating import Repeating
    from tuimon.train.track import Track

FLUSH_LIMIT_S = 0.5
UPDATE_TAP = "optimizer"
DISCOVERY_TAP = "discovery"
SCALE_TAP = "loss scale"
_OPTIMIZER_FILE = sys.modules["torch.optim.optimizer"].__file__


class Observer:
    """What the taps share.

    Attributes:
        roster: who is watched.
        current: the track whose outermost `step` is running.
        scaling: the track whose `GradScaler.step` is running.
        scaler: that scaler.
        inside: steps that are taken inside backward.
        examiner: what becomes of a step that is not healthy.
        scenes: the forwards that the next update follows from.
        repeating: what an earlier run was told, where it is to be repeated.
        loop: how the script puts its parts together.
        breaks: conditions under which the training is held.
        off: taps pass through, for a while or, in a forked child, for good.
        explicit: the user marks boundaries with `mon.step()`; forwards no longer do.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        looks = modes.function_modes, modes.dispatch_modes
        self.boundary = Boundary(self._tap_failed, lookers=looks, unseen=modes.unseen)
        self.clipping, self.rates = Clipping(), Rates()
        self.snapshots = Snapshots(self)
        self.batches = Batches(self)
        self.gate = Gate(self)
        self.controls = Controls(self)
        self.roster = Roster(session, self._make_track)
        self.current: Track | None = None
        self.scaling: Track | None = None
        self.scaler: Any = None
        self.nested = 0
        self.losses = Losses()
        self.last_losses: Losses | None = None
        self.times = Times()
        self.clips = Clips()
        self.extras = Extras(self)
        self.breaks = Breaks(self)
        self.inside = Inside(self)
        self.examiner = Examiner(self)
        self.scenes = self.examiner.scenes
        self.backward_calls = 0
        self.amp = Scaling(self)
        self.loop = Loop(self)
        self.repeating: Repeating | None = None
        self.explicit = False
        self.off = False
        self.thread = get_ident()

    def start_over(self, session: Session) -> None:
        """Publish everything again, to another session."""
        self.gate.together.close("this run has ended")
        self.session = session
        self.repeating = None
        self.boundary.start_over()
        self.roster.start_over(session)
        self.clipping, self.rates = Clipping(), Rates()
        self.snapshots = Snapshots(self)
        self.batches = Batches(self)
        self.gate = Gate(self)
        self.controls = Controls(self)
        self.losses, self.last_losses = Losses(), None
        self.times, self.clips = Times(), Clips()
        self.backward_calls = 0
        self.amp = Scaling(self)
        self.loop = Loop(self)
        self.explicit = False
        self.inside.start_over()
        self.extras.start_over()
        self.breaks = Breaks(self)
        self.examiner.release()
        self.examiner = Examiner(self)
        self.scenes = self.examiner.scenes

    def adopt(self, policy: Policy) -> None:
        """Follow this policy from now on."""
        self.examiner.adopt(policy)
        self.snapshots.every = policy.snapshots

    def repeat(self, ledger: Ledger) -> None:
        """Carry out again what an earlier run was told, at the same steps."""
        from tuimon.train.control.repeating import Repeating

        self.repeating = Repeating(self, ledger)
        self.repeating.begin()

    def scale_of(self, track: Track) -> float | None:
        """The loss scale that the gradients of an update carry; None without one."""
        return None if self.scaling is not track else host_scale(self.scaler)

    def dump(self, directory: str, layers: list[str], track: Track) -> Outcome:
        """Write what somebody asked for, as it is before this update."""
        from tuimon.train.control.dump import write_dump

        tensors = self.roster.dump_tensors(layers)
        note = self.gradient_note(track)
        step, rank = self.roster.next_step(), self.gate.together.rank
        return write_dump(directory, tensors, step=step, note=note, rank=rank)

    def save_checkpoint(self, directory: str) -> Outcome:
        """Write what it takes to go on later, as it is before this update."""
        from tuimon.train.control.checkpoint import write_checkpoint

        tracks = sorted(self.roster.tracks.values(), key=lambda track: track.index)
        optimizers = [each for track in tracks if (each := track.optimizer) is not None]
        roots, scalers = self.roster.roots(), list(self.roster.scalers)
        step = self.roster.next_step()
        return write_checkpoint(directory, roots, optimizers, scalers, step=step)

    def gradient_note(self, track: Track) -> str:
        """What a reader of dumped gradients must know about them."""
        if self.scaling is track:
            return "gradients as before GradScaler.step: they may carry the loss scale"
        return "gradients as before the update"

    # --- what taps ask ----------------------------------------------------------------------------

    def switch(self, *, off: bool) -> None:
        """Make every tap pass through, or listen again."""
        self.off = off or self.boundary.inert

    def is_nested(self) -> bool:
        """Whether the running step hook belongs to a step inside another step.

        Each level of `Optimizer.step` has one frame of torch's hook wrapper on the stack. A step
        that raised leaves `current` set, but no frame.
        """
        frame = sys._getframe(1)
        levels = 0
        while frame is not None:
            code = frame.f_code
            if code.co_name == "wrapper" and code.co_filename == _OPTIMIZER_FILE:
                levels += 1
                if levels == 2:
                    return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def reach_boundary(self) -> None:
        """A place where no graph is alive: commands that end the training act here."""
        if self.gate.busy and not self.boundary.inert:
            self.gate.at_boundary()

    def log(self, given: Sequence[Any], scalars: Mapping[str, Any]) -> None:
        """Publish the user's own numbers for the step that is being prepared.

        Args:
            given: what came without a keyword: mappings, or one name and its number.
            scalars: by name.
        """
        if len(given) == 2 and isinstance(given[0], str):
            given = [{given[0]: given[1]}]
        named: dict[Any, Any] = {}
        for each in given:
            if isinstance(each, Mapping):
                named |= each
            else:
                self.boundary.failed("log", TypeError("a number without a name"))
        values: dict[str, float] = {}
        for name, value in {**named, **scalars}.items():
            number = host_number(value)
            if number is None:
                self.boundary.failed(f"log {name}", TypeError("not a number in host memory"))
            else:
                values[plain(str(name))] = number
        if values:
            self.session.publish(Scalars(step=self.roster.next_step(), values=values))

    def take_losses(self, track: Track) -> Losses:
        """The losses that led to the update of `track`; two optimizers may share them."""
        losses = self.losses
        last = self.last_losses
        if losses.calls == 0 and last is not None and id(track) not in last.taken_by:
            last.taken_by += (id(track),)
            return last
        losses.taken_by = (id(track),)
        self.last_losses = losses
        self.losses = Losses()
        return losses

    def gradients_change(self) -> None:
        """A backward begins: clipping and norms of earlier gradients no longer hold."""
        self.clips.clear()
        for track in self.roster.tracks.values():
            if track.late is not None:
                track.late.forget()

    def used_up(self, track: Track) -> None:
        """After the record of an update: the clipping that led to it is used up."""
        clips = self.clips
        if len(self.roster.tracks) == 1:
            clips.clear()
            return
        grads = {id(param.grad) for param in track.plan.params}
        clips.forget(track.plan.ids, grads)

    def spent(self, began_s: float) -> None:
        """Add the time since `began_s` to tuimon's own account."""
        self.times.cost_s += time.perf_counter() - began_s

    def _make_track(self, optimizer: Optimizer, index: int) -> Track:
        from tuimon.train.track import Track

        return Track(self, optimizer, index)

    # --- failures and forks -----------------------------------------------------------------------

    def _tap_failed(self, tap: str, cause: str, last: bool) -> None:
        kind = "tap-disarmed" if last else "tap-failed"
        self.session.event(kind, f"{tap}: {cause}", severity="warning")
        if tap == EXTRAS_TAP:
            self.extras.stop()
        if last and tap in (UPDATE_TAP, SCALE_TAP):
            self.gate.together.close(f"{tap} is no longer watched there")
        if last and tap in (UPDATE_TAP, SCALE_TAP) and self.clipping.mode != CLIP_USER:
            self.clipping.mode = CLIP_USER
            self.session.event("clip", "clipping is the script's again", severity="warning")
        if last and tap in (UPDATE_TAP, SCALE_TAP) and self.rates.active:
            self.rates.release()
            self.session.event("lr", "the script's learning rates again", severity="warning")
        if last and (tap == UPDATE_TAP or (tap == DISCOVERY_TAP and self.session.step is None)):
            self.session.watch.switch_off(f"{tap}: {cause}")
            while self.gate.queue:
                self.gate.refuse(self.gate.queue.popleft(), self.session.watch.refusal)

    def flush(self) -> None:
        """At the end of the run: publish what a device still owes, within a bounded time."""
        self.gate.together.close("the run has ended")
        self.batches.flush()
        self.amp.publish()
        self.loop.close()
        deadline_s = time.monotonic() + FLUSH_LIMIT_S
        for track in self.roster.tracks.values():
            track.flush(deadline_s)

    def become_inert(self) -> None:
        """In a forked child: every tap only passes through from now on."""
        self.boundary.inert = self.off = True
        self.examiner.lines.release()
        self.extras.armed = False
