"""Follows one optimizer from update to update and publishes a `Step` for each.

Hooks of the optimizer and of GradScaler call in here; the order inside an update is gate,
statistics, clipping, update, look at the weights, record.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from tuimon.model.records import CLIP_ON, MAX_BAD, BadTensor, Step
from tuimon.train import census, clip
from tuimon.train.account import ClipCall, Losses
from tuimon.train.stats import Measured, Plan, clipped_norm, host_number, measure, spread

if TYPE_CHECKING:
    from tuimon.train.observer import Observer

HEALTHY_STREAK = 200  # updates without a suspicion after which incidents are counted anew
MAX_BAD_WEIGHTS = MAX_BAD // 2  # so that neither gradients nor weights crowd out the other


class Track:
    """One watched optimizer. Used by the training thread only.

    Attributes:
        index: its number in the records; 0 is the primary one.
        step: index of the update that comes next.
    """

    def __init__(self, observer: Observer, optimizer: Optimizer, index: int) -> None:
        self.index = index
        self.step = 0
        self.plan = Plan([], [], [], 0)
        self._observer = observer
        # A plan holds parameters strongly: it must not outlive the optimizer that holds them too.
        self._reference = weakref.ref(optimizer, self._forget)
        self._handles: list[Any] = []
        self._elected = False
        self._measured: Measured | None = None
        self._updated = False
        self._waited_s = 0.0
        self._began_s: float | None = None
        self._optimizer_s: float | None = None
        self._finished_s: float | None = None
        self._incidents = 0
        self._healthy = 0
        self.check_every = 1
        self._weights: list[BadTensor] = []
        self._weights_total = 0
        self._checked: list[str] = []
        self._bad_before: int | None = None
        self._clip_calls: list[ClipCall] = []
        self._covered: tuple[int, int, int] | None = None

    # --- what it owns -----------------------------------------------------------------------------

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, or None when it is gone."""
        return self._reference()

    def _forget(self, _: Any) -> None:
        self.plan = Plan([], [], [], 0)
        self._clip_calls = []

    def owned(self) -> list[torch.Tensor]:
        """Its parameters in the order of its groups."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        return [param for group in optimizer.param_groups for param in group["params"]]

    def shares_with(self, other: Track) -> bool:
        """Whether another optimizer updates some of the same parameters."""
        return not self.plan.ids.isdisjoint(other.plan.ids)

    def plan_again(self) -> None:
        """Follow a new layer table."""
        layers = self._observer.layers
        params = sorted(self.owned(), key=lambda param: layers.place_of[id(param)])
        places = [layers.place_of[id(param)] for param in params]
        names = [layers.table.names[place] for place in places]
        self.plan = Plan(params, names, places, layers.count)
        self._covered = None

    @property
    def attached(self) -> bool:
        """Whether its hooks are on."""
        return bool(self._handles)

    def attach(self, handles: Iterable[Any]) -> None:
        """Keep the handles of its hooks."""
        self._handles += handles

    def close(self) -> None:
        """Take its hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # --- an update --------------------------------------------------------------------------------

    def enter(self) -> None:
        """Before an update: be known, keep up with new parameters, do what viewers asked for."""
        observer = self._observer
        if not self._elected:
            self._elected = True
            observer.elect(self)
        optimizer = self.optimizer
        assert optimizer is not None
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count != len(self.plan.params) or (
            self.step % census.EVERY_STEPS == 0 and not self._same_params()
        ):
            observer.renew_layers()
        self._measured = None
        self._updated = False
        self._clip_calls = []
        self._waited_s = 0.0
        self._weights, self._weights_total, self._checked = [], 0, []
        self._bad_before = None
        if observer.gate.busy:
            began_s = time.perf_counter()
            self._waited_s = observer.gate.at_gate(self)
            # Waiting is what the user asked for, not a cost of watching.
            observer.times.cost_s -= min(self._waited_s, time.perf_counter() - began_s)

    def look(self, divisor: float | None = None) -> None:
        """When the gradients are final: clip if it is ours to do, and measure them unclipped.

        Args:
            divisor: loss scale that the gradients still carry.
        """
        observer = self._observer
        clips = observer.clips
        plan = self.plan
        calls = [call for call in clips.calls if call.touches(plan.ids)]
        if self.step % self.check_every and not _is_bad(observer.losses.last):
            self._clip_calls = calls
            return
        total: torch.Tensor | None = None
        ours = observer.clipping.mode == CLIP_ON and not calls and divisor is None
        if ours:
            total = self._total_norm()
        exact = self._incidents < census.MAX_INCIDENTS
        measured = measure(plan, divisor=divisor, spied=clips.norms or None, exact=exact)
        if self._measured is not None and self._measured.flags is not None:
            _keep_flags(measured, self._measured)
        self._measured = measured
        if total is not None:
            calls = [self._clip(total)]
        self._clip_calls = calls
        if not self._checked and _is_bad(observer.losses.last):
            self._look_at_weights("before")

    def began(self) -> None:
        """The optimizer starts now."""
        self._began_s = time.perf_counter()

    def ended(self) -> None:
        """The optimizer has run; the record may still wait for the scaler."""
        now_s = time.perf_counter()
        self._optimizer_s = now_s - self._began_s if self._began_s is not None else None
        self._began_s = None
        self._updated = True

    @property
    def updated(self) -> bool:
        """Whether the optimizer ran since `enter`."""
        return self._updated

    def finish(
        self,
        *,
        loss_scale: float | None = None,
        found_inf: bool | None = None,
        skipped: bool = False,
    ) -> None:
        """After an attempted update: look at the weights when it is due, publish the record."""
        observer = self._observer
        losses = observer.take_losses(self)
        measured = self._measured
        suspicious = _is_bad(losses.last) or (measured is not None and measured.bad_total > 0)
        self._count_incident(suspicious)
        known = self._incidents > census.MAX_INCIDENTS
        if census.is_due(self.step) or (suspicious and not known and not skipped):
            self._look_at_weights("after")
        now_s = time.perf_counter()
        observer.session.publish(
            self._record(losses, now_s, loss_scale=loss_scale, found_inf=found_inf, skipped=skipped)
        )
        self._finished_s = now_s
        self._optimizer_s = None
        self._measured = None
        self._clip_calls = []
        observer.updated(self)
        if self.index == 0:
            observer.session.advance(self.step, time.monotonic())
        self.step += 1

    def _record(
        self,
        losses: Losses,
        now_s: float,
        *,
        loss_scale: float | None,
        found_inf: bool | None,
        skipped: bool,
    ) -> Step:
        observer = self._observer
        measured = self._measured
        times = observer.times
        norms, flags = spread(self.plan, measured) if measured is not None else (b"", b"")
        weights = self._weights[:MAX_BAD_WEIGHTS]
        gradients = measured.bad[: MAX_BAD - len(weights)] if measured is not None else []
        step_s = None if self._finished_s is None else now_s - self._finished_s - self._waited_s
        return Step(
            step=self.step,
            time_ns=time.time_ns(),
            epoch=observer.layers.table.epoch,
            optimizer=self.index,
            loss=losses.last,
            loss_sum=losses.total,
            backward_calls=losses.calls,
            grad_norm=measured.total if measured is not None else None,
            grad_norm_clipped=self._clipped_norm(),
            max_norm=self._max_norm(),
            clip=observer.clipping.mode,
            lrs=self._lrs(),
            loss_scale=loss_scale,
            found_inf=found_inf,
            skipped=skipped,
            norms=norms,
            flags=flags,
            bad=gradients + weights,
            bad_total=(measured.bad_total if measured is not None else 0) + self._weights_total,
            step_s=step_s,
            data_s=times.data_s,
            forward_s=times.forward_s,
            backward_s=times.backward_s,
            optimizer_s=self._optimizer_s,
            cost_s=times.cost_s,
            weights_checked="both" if len(self._checked) > 1 else "".join(self._checked),
            bad_before=self._bad_before,
        )

    # --- parts ------------------------------------------------------------------------------------

    def _same_params(self) -> bool:
        return {id(param) for param in self.owned()} == self.plan.ids

    def _total_norm(self) -> torch.Tensor | None:
        """torch's own total norm of our gradients; per-tensor norms are kept on the way."""
        clips = self._observer.clips
        grads = [param.grad for param in self.plan.params if param.grad is not None]
        if not grads or clip.total_norm is None:
            return None
        with clip.spying(clips.norms, clips.held, self._observer.thread):
            return clip.total_norm(grads)

    def _clip(self, total: torch.Tensor) -> ClipCall:
        bound = self._observer.clipping.max_norm
        assert bound is not None and clip.multiply is not None
        clip.multiply(self.plan.params, bound, total)
        host = float(total) if total.device.type == "cpu" else None
        factor = None if host is None else clip.factor(bound, host)
        return ClipCall(self.plan.params, bound, factor)

    def _max_norm(self) -> float | None:
        bounds = [call.max_norm for call in self._clip_calls if call.max_norm is not None]
        finite = [bound for bound in bounds if math.isfinite(bound)]
        return min(finite) if finite else None

    def _clipped_norm(self) -> float | None:
        measured = self._measured
        calls = [call for call in self._clip_calls if call.max_norm is not None]
        if measured is None or not calls:
            return measured.total if measured is not None else None
        if any(call.factor is None for call in calls):
            return None
        if len(calls) == 1 and self._covers(calls[0]):
            return clipped_norm(measured, calls[0].factor)
        factors = [1.0] * len(self.plan.params)
        for call in calls:
            inside = {id(param) for param in call.params}
            for index, param in enumerate(self.plan.params):
                if id(param) in inside and call.factor is not None:
                    factors[index] *= call.factor
        return clipped_norm(measured, factors)

    def _covers(self, call: ClipCall) -> bool:
        """Whether a clipping call was given all our parameters; the same list is asked once."""
        params = call.params
        if params is self.plan.params:
            return True
        key = (len(params), id(params[0]), id(params[-1]))
        if key == self._covered:
            return True
        if self.plan.ids <= {id(param) for param in params}:
            self._covered = key
            return True
        return False

    def _lrs(self) -> list[float | None]:
        optimizer = self.optimizer
        if optimizer is None:
            return []
        return [host_number(group.get("lr")) for group in optimizer.param_groups]

    def _count_incident(self, suspicious: bool) -> None:
        if suspicious:
            self._incidents += 1
            self._healthy = 0
            return
        self._healthy += 1
        if self._healthy >= HEALTHY_STREAK:
            self._incidents = 0

    def _look_at_weights(self, side: str) -> None:
        """Look for non-finite weights, buffers and optimizer state; the newest finding counts."""
        optimizer = self.optimizer
        if optimizer is None or (side == "before" and self._incidents >= census.MAX_INCIDENTS):
            return
        names = dict(zip(map(id, self.plan.params), self.plan.names, strict=True))
        tensors = census.state_tensors(self._observer.roots(), optimizer, names)
        bad, total, looked = census.find_bad(tensors)
        if looked:
            self._checked.append(side)
            if side == "before":
                self._bad_before = total
            self._weights, self._weights_total = bad, total


def wrap_closure(closure: Callable[..., Any], after: Callable[[], Any]) -> Callable[..., Any]:
    """A closure that lets us look at the gradients after each evaluation."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = closure(*args, **kwargs)
        after()
        return result

    return watched


def _keep_flags(measured: Measured, earlier: Measured) -> None:
    """A value that was not finite in an earlier evaluation of a closure stays visible."""
    assert earlier.flags is not None
    if measured.flags is None:
        measured.flags = earlier.flags
    else:
        measured.flags |= earlier.flags
    measured.bad = earlier.bad + measured.bad
    measured.bad_total = max(measured.bad_total, earlier.bad_total)


def _is_bad(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
