"""Follows one optimizer from update to update and publishes a `Step` for each.

Hooks of the optimizer and of GradScaler call in here; the order inside an update is gate,
statistics, clipping, update, look at the weights, record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from tuimon.model.records import CLIP_ON, Step
from tuimon.train.account import Losses, ScalerView
from tuimon.train.control import clip
from tuimon.train.control.rates import in_force
from tuimon.train.late import LateStats
from tuimon.train.owner import Owner
from tuimon.train.samples import census
from tuimon.train.samples.census import Weights
from tuimon.train.stats import Measured, Plan, measure, unscale
from tuimon.train.update import Place, Update, step_record

if TYPE_CHECKING:
    from tuimon.train.observer import Observer

GRADIENTS_TAP = "gradients"


class Track(Owner):
    """One watched optimizer. Used by the training thread only.

    Attributes:
        index: its number in the records; 0 is the primary one.
        step: index of the update that comes next.
        step_s: host seconds of the newest update, without waiting; None where not known.
        update: the update that is being prepared or has just ended.
    """

    def __init__(self, observer: Observer, optimizer: Optimizer, index: int) -> None:
        super().__init__(observer, optimizer)
        self.index = index
        self.step = 0
        self.check_every = 1
        self.update = Update()
        self._elected = False
        self._weights = Weights()
        self._finished_s: float | None = None
        self.step_s: float | None = None

    def _forget(self, _: Any) -> None:
        super()._forget(_)
        self.update = Update()

    def interrupt(self) -> None:
        """Updates may go unseen from here on: the next that is seen cannot tell its time."""
        self._finished_s = None

    # --- an update --------------------------------------------------------------------------------

    def elect(self) -> None:
        """At the first update: become known, and perhaps the primary one."""
        if not self._elected:
            self._elected = True
            self._observer.inside.leave(self)
            self._observer.roster.elect(self)
            self._observer.extras.begin(self)
            self._observer.loop.begins(self)
            self._observer.gate.together.begin()
            if (repeating := self._observer.repeating) is not None:
                repeating.before(self._observer.roster.next_step())

    def enter(self) -> None:
        """Before an update: be known, keep up with new parameters, do what viewers asked for."""
        observer = self._observer
        if not self._elected:
            self.elect()
        self.keep_up()
        if observer.loop.clearing.due:
            observer.loop.at_gate(self)
        update = self.update
        update.begin()
        if self._weights.checked:
            self._weights.begin()
        gate = observer.gate
        if not self.index:
            gate.promises.place = 2 * self.step + 1
        if gate.busy:
            update.waited_s = gate.at_gate(self)
            observer.times.cost_s -= update.waited_s  # waiting was asked for; it is not a cost

    def look(self, divisor: float | None = None, *, scaled: bool = False) -> None:
        """When the gradients are final: measure them unclipped, and clip if it is ours to do.

        Args:
            divisor: loss scale that the gradients still carry, when it lies in host memory.
            scaled: they still carry one, wherever it lies.
        """
        observer, update = self._observer, self.update
        params = self.plan.params
        update.scaled = scaled
        if observer.clips.calls:
            update.calls = [c for c in observer.clips.calls if c.touches(self.plan.ids)]
        total: torch.Tensor | None = None
        if observer.clipping.mode == CLIP_ON and not update.calls and not scaled:
            total = clip.spied_total(params, observer.clips, observer.thread)
        if self.step % self.check_every == 0 or observer.losses.is_bad:
            try:
                self._measure(divisor)
            except Exception as error:  # clipping that was asked for must happen all the same
                observer.boundary.failed(GRADIENTS_TAP, error)
        elif self.late is not None:
            self.late.leave_out()
        examiner, hold = observer.examiner, observer.gate.hold
        if update.is_bad or examiner.requested or examiner.skips or examiner.nodes.hooks:
            examiner.at_gate(self, update.measured)
        if examiner.testing.waits and self.index == 0:
            examiner.testing.before_update(self, observer.losses.last)
        is_hit = observer.breaks.armed and observer.breaks.judge(self)
        if update.is_bad or hold.bad:
            hold.settle(self)
        if is_hit:
            observer.breaks.wait(self)
        if hold.skips:
            hold.leave_out_asked(self)
        if observer.extras.armed:
            observer.extras.before_update(self, divisor if scaled else 1.0)
        if not scaled and observer.clipping.mode == CLIP_ON:
            self.clip_as_asked(total)

    def clip_as_asked(self, total: torch.Tensor | None = None) -> None:
        """Clip if that is ours to do by now: a hold may have changed it.

        Args:
            total: torch's own norm of the gradients, where it has been taken.
        """
        observer, update, params = self._observer, self.update, self.plan.params
        bound = observer.clipping.max_norm
        if observer.clipping.mode != CLIP_ON or update.calls or bound is None:
            return
        if total is None:
            total = clip.spied_total(params, observer.clips, observer.thread)
        if total is not None and clip.multiply is not None:
            self.before_clipping()
            clip.multiply(params, bound, total)
            update.calls = [clip.called(params, bound, total, CLIP_ON)]

    def before_clipping(self, *, hides: bool = False) -> None:
        """Our gradients are about to change; measured now where that `hides` what they were."""
        if self.late is not None:
            self.late.measure()
        elif hides:
            clips, exact = self._observer.clips, self._weights.affordable
            measured = measure(self.plan, spied=clips.norms or None, exact=exact)
            clips.before_values.setdefault(self.index, measured)

    def finish(self, *, scaler: ScalerView | None = None, skipped: bool = False) -> None:
        """After an attempted update: look at the weights when it is due, publish the record."""
        observer, update, weights = self._observer, self.update, self._weights
        if scaler is None and observer.amp.settings:
            observer.amp.on_direct_step(self)
        skipped = update.skipped = skipped or bool(update.left_out)
        losses = observer.take_losses(self)
        suspicious = losses.is_bad or update.is_bad
        if census.is_due(self.step) or (suspicious and not skipped and weights.affordable):
            self._look_at_weights("after")
        if weights.bad_total and not suspicious:
            observer.examiner.on_weights(self, {each.what for each in weights.bad})
        weights.conclude(suspicious)
        if suspicious and not skipped and not losses.is_bad:
            observer.batches.on_bad_gradients()
        place = self.place()
        late = self.late is not None and self._submit(self.late, place, losses, scaler)
        now_s = time.perf_counter()
        apart_s = update.waited_s + observer.times.examined_s
        step_s = None if self._finished_s is None else now_s - self._finished_s - apart_s
        observer.times.step_s = self.step_s = step_s
        self._finished_s = now_s
        observer.session.publish(self.record(place, losses, scaler, late=late))
        update.calls = []
        observer.times.reset()
        if observer.clips.calls or observer.clips.held:
            observer.used_up(self)
        observer.examiner.conclude(suspicious, step_s)
        updated = update.optimizer_s is not None and not skipped
        observer.extras.after_update(self, self.step, step_s, updated, suspicious)
        observer.loop.after_update(self)
        if observer.snapshots.every and self.index == 0:
            observer.snapshots.after_update(
                self, finite=updated and _is_finite(losses, update, weights)
            )
        self.step += 1
        if observer.repeating is not None and self.index == 0:
            observer.repeating.before(self.step)

    def record(self, place: Place, losses: Losses, amp: ScalerView | None, *, late: bool) -> Step:
        """What is known of the update that is being prepared, or has just ended."""
        observer, update = self._observer, self.update
        return step_record(
            place,
            update.plan or self.plan,
            update,
            losses=losses,
            times=observer.times,
            weights=self._weights,
            scaler=amp,
            late=late,
            lrs=update.lrs if update.lrs is not None else _rates_of(self.reference()),
            clip_mode=update.calls[-1].mode if update.calls else observer.clipping.mode,
            covering=self._covering,
        )

    def conclude(self, plan: Plan, measured: Measured | None, *, waited_s: float) -> None:
        """Updates inside a backward have happened: publish them as one, with this one's number.

        Args:
            plan: the parameters of all of them.
            measured: their gradients, each as it was before its own step.
            waited_s: time at the gate since the one before.
        """
        observer, update = self._observer, self.update
        update.begin()
        self._weights.begin()
        update.plan, update.waited_s = plan, waited_s
        update.calls = list(observer.clips.calls)
        if measured is not None:
            update.take(measured)
        if self.late is not None:
            self.late.leave_out()
        self.finish()

    def flush(self, deadline_s: float) -> None:
        """Publish what a device still owes, until `time.monotonic` reaches the deadline."""
        if self.late is not None:
            self.late.flush(self._observer.session, deadline_s)

    def place(self) -> Place:
        """Which update comes next, or has just ended."""
        observer = self._observer
        data = observer.batches.passes.current
        at = (None, None) if data is None else (data.epoch, data.batch)
        return Place(self.step, self.index, observer.roster.layers.table.epoch, *at)

    # --- parts ------------------------------------------------------------------------------------

    def _measure(self, divisor: float | None) -> None:
        observer = self._observer
        if GRADIENTS_TAP in observer.boundary.disarmed:
            return
        if self.late is not None:
            clipped = any(call.max_norm is not None for call in self.update.calls)
            self.late.measure(already_clipped=clipped)
            return
        measured = observer.clips.before_values.pop(self.index, None)
        if measured is None:
            spied, exact = observer.clips.norms or None, self._weights.affordable
            measured = measure(self.plan, divisor=divisor, spied=spied, exact=exact)
        else:
            self.update.left = measure(self.plan, divisor=divisor).total
            if divisor is not None:
                unscale(measured, divisor)
        self.update.take(measured)
        if observer.losses.is_bad and self._weights.affordable:
            self._look_at_weights("before")

    def _submit(
        self, late: LateStats, place: Place, losses: Losses, scaler: ScalerView | None
    ) -> bool:
        """Send the device part on its way, publish what has arrived; whether more will follow."""
        flying = late.submit(place, self.update, losses=losses, scaler=scaler)
        late.publish(self._observer.session)
        return flying

    def _look_at_weights(self, side: str) -> None:
        optimizer = self.optimizer
        if optimizer is not None and not (side == "before" and self._weights.checked):
            names = dict(zip(map(id, self.plan.params), self.plan.names, strict=True))
            roots = self._observer.roster.roots()
            self._weights.look(side, census.state_tensors(roots, optimizer, names))


def _is_finite(losses: Losses, update: Update, weights: Weights) -> bool:
    """Whether the losses of the update that has just ended were read, and all that is known of
    it is finite: losses, gradients where they were measured, weights where they were looked at.
    """
    return (
        losses.last is not None
        and losses.total is not None
        and math.isfinite(losses.last)
        and math.isfinite(losses.total)
        and not update.is_bad
        and not weights.bad_total
    )


def _rates_of(optimizer: Optimizer | None) -> list[float | None]:
    groups = optimizer.param_groups if optimizer is not None else []
    if len(groups) == 1 and type(lr := groups[0].get("lr")) is float:
        return [lr]
    return [] if optimizer is None else in_force(optimizer)


def wrap_closure(closure: Callable[..., Any], after: Callable[[], Any]) -> Callable[..., Any]:
    """A closure that lets us look at the gradients after each evaluation."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = closure(*args, **kwargs)
        after()
        return result

    return watched
