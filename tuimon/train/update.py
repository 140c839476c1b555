"""One attempted update of one optimizer: what is gathered on the way, and the record of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch.optim import Optimizer

from tuimon.model.records import MAX_BAD, NON_FINITE, BadTensor, Step
from tuimon.train.account import ClipCall, Losses, ScalerView, Times
from tuimon.train.control import clip, rates
from tuimon.train.control.rates import Rates
from tuimon.train.samples.census import Weights
from tuimon.train.stats import Flags, Measured, Plan, clipped_norm, share, spread


@dataclass(slots=True)
class Update:
    """Filled between the gate and the record.

    Attributes:
        plan: what was updated, where that is more than the parameters of one optimizer.
        measured: gradient statistics on the host; None when they were not taken there.
        left: total norm that clipping by value left; None without.
        calls: clipping of these gradients.
        waited_s: time at the gate.
        began_s: when the optimizer began, on `time.perf_counter`.
        optimizer_s: how long it took; None while it has not run.
        scaled: the gradients carried a loss scale when they were measured.
        is_bad: gradients were measured that are not finite.
        left_out: why the update is not made although the script asked for it; "" when it is.
        skipped: it was not made.
        has_closure: the script handed over a closure, so that the update is not ours to leave out.
        lrs: learning rates of the groups where they are not the script's own; None otherwise.
    """

    plan: Plan | None = None
    measured: Measured | None = None
    left: float | None = None
    calls: list[ClipCall] = field(default_factory=list)
    waited_s: float = 0.0
    began_s: float | None = None
    optimizer_s: float | None = None
    scaled: bool = False
    is_bad: bool = False
    left_out: str = ""
    skipped: bool = False
    has_closure: bool = False
    lrs: list[float | None] | None = None
    _rates: list[Any] = field(default_factory=list)
    _taken: tuple[Optimizer, Any, list[tuple[torch.Tensor, Any]]] | None = None

    @property
    def ran(self) -> bool:
        """Whether the optimizer has run."""
        return self.optimizer_s is not None

    def begin(self) -> None:
        """Forget the last one."""
        if self._taken is not None:  # a step that raised has not come to its end
            self.give_back()
        if self._rates:
            self.take_off_rates()
        self.lrs = None
        self.plan = self.measured = self.left = self.began_s = self.optimizer_s = None
        self.calls = []
        self.waited_s = 0.0
        self.scaled = self.has_closure = self.is_bad = False
        self.left_out = ""

    def take_away(self, optimizer: Optimizer) -> None:
        """Leave nothing for the optimizer to do: this update is not made."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        self._taken = optimizer, optimizer.param_groups, [(param, param.grad) for param in params]
        optimizer.param_groups = []
        for param in params:
            param.grad = None

    def give_back(self) -> None:
        """Put back what `take_away` took."""
        if self._taken is None:
            return
        (optimizer, groups, grads), self._taken = self._taken, None
        optimizer.param_groups = groups
        for param, grad in grads:
            param.grad = grad

    def put_on_rates(self, asked: Rates, index: int, optimizer: Optimizer) -> None:
        """Let the optimizer have the learning rates that were asked for, for this update."""
        self._rates = asked.put_on(index, optimizer)
        self.lrs = rates.in_force(optimizer)

    def take_off_rates(self) -> None:
        """Put back the script's own."""
        changed, self._rates = self._rates, []
        rates.take_off(changed)

    def end(self) -> float:
        """The optimizer has run; returns when, on `time.perf_counter`."""
        now_s = time.perf_counter()
        self.optimizer_s = now_s - (self.began_s if self.began_s is not None else now_s)
        return now_s

    def take(self, measured: Measured) -> None:
        """Keep a measurement; what an earlier one of the same closure saw stays visible."""
        earlier, self.measured = self.measured, measured
        self.is_bad = self.is_bad or measured.bad_total > 0
        if earlier is None or earlier.flags is None or not earlier.bad_total:
            return
        bad: Flags = earlier.flags & np.uint8(NON_FINITE)
        measured.flags = bad if measured.flags is None else measured.flags | bad
        measured.bad = earlier.bad + measured.bad
        measured.bad_total = max(measured.bad_total, earlier.bad_total)

    def clipped_norm(
        self, params: Sequence[torch.Tensor], covering: set[tuple[int, int, int]]
    ) -> float | None:
        """Total norm that the optimizer met."""
        measured = self.measured
        if measured is None or self.left is not None:
            return self.left
        calls = [call for call in self.calls if call.max_norm is not None] if self.calls else ()
        if not calls:
            return measured.total
        if any(call.factor is None for call in calls):
            return None
        return clipped_norm(measured, clip.factors_of(calls, params, covering))


class Place(msgspec.Struct, frozen=True):
    """Which update a record speaks of."""

    step: int
    optimizer: int
    epoch: int
    data_epoch: int | None = None
    batch_index: int | None = None


def step_record(
    place: Place,
    plan: Plan,
    update: Update,
    *,
    losses: Losses,
    times: Times,
    weights: Weights,
    scaler: ScalerView | None,
    late: bool,
    lrs: list[float | None],
    clip_mode: str,
    covering: set[tuple[int, int, int]],
) -> Step:
    """The record of a finished update."""
    norms, flags, grad_norm, bad, total = _findings(plan, update.measured, weights)
    clipped = grad_norm
    if update.calls or update.left is not None:
        clipped = update.clipped_norm(plan.params, covering)
    return Step(
        step=place.step,
        time_ns=time.time_ns(),
        epoch=place.epoch,
        optimizer=place.optimizer,
        loss=losses.last,
        loss_sum=losses.total,
        backward_calls=losses.calls,
        grad_norm=grad_norm,
        grad_norm_clipped=clipped,
        max_norm=clip.bound_of(update.calls) if update.calls else None,
        clip=clip_mode,
        lrs=lrs,
        loss_scale=scaler.host_scale if scaler is not None else None,
        found_inf=scaler.host_found_inf if scaler is not None else None,
        skipped=update.skipped,
        norms=norms,
        flags=flags,
        bad=bad,
        bad_total=total,
        step_s=times.step_s,
        data_s=times.data_s,
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        optimizer_s=update.optimizer_s,
        cost_s=times.cost_s,
        late=late,
        weights_checked=weights.checked,
        bad_before=weights.bad_before,
        data_epoch=place.data_epoch,
        batch_index=place.batch_index,
        left_out=update.left_out,
        grad_share=share(plan, update.measured),
    )


_Findings = tuple[bytes, bytes, float | None, list[BadTensor], int]


def _findings(plan: Plan, measured: Measured | None, weights: Weights) -> _Findings:
    """(norms, flags, total norm, bad tensors, how many are bad) of gradients and weights."""
    bad, bad_total = weights.bad, weights.bad_total
    if measured is None:
        return b"", b"", None, bad, bad_total
    if measured.bad_total:
        bad = measured.bad[: MAX_BAD - len(bad)] + bad
        bad_total += measured.bad_total
    if plan.whole and measured.flags is None:
        return measured.wire, b"", measured.total, bad, bad_total
    return *spread(plan, measured), measured.total, bad, bad_total
