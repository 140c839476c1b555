"""Tests an update of a training whose loss grows: does it raise the loss of its own batch?

The update is made on copies, as it is and with one thing changed, and the loss of the same batch
is computed again with the weights that come of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE
from tuimon.model.units import number
from tuimon.train.autopsy import looks
from tuimon.train.autopsy.names import Names
from tuimon.train.autopsy.optimizing import trace_optimizer
from tuimon.train.autopsy.tracer import Limits
from tuimon.train.layers import unwrap
from tuimon.train.trials.changes import Change
from tuimon.train.trials.clocking import Clock, Trial
from tuimon.train.trials.judging import Judgement
from tuimon.train.trials.replaying import Outcome, Roots

LESS = 10.0  # the learning rate is divided by that
RISE = 1e-3  # relative; below it a loss computed again is the same
# Their update does not depend on the scale of the gradient.
_ADAPTIVE = frozenset(
    ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Lion", "Adafactor", "Adagrad")
)

CLEARED = "what earlier updates had left in the gradients was taken out"

Alteration = Callable[[Any], None]
Play = Callable[[Change], Outcome]


class Step(NamedTuple):
    """The update that is looked into.

    Attributes:
        optimizer: read only.
        roots: (prefix of its names, module) of all models.
        play: replays the step with a change.
        loss: of its batch, before the update.
        summed: elements that the loss adds up; 0 where it is no sum.
        own: gradients of the batch alone by name, where earlier ones had been left in those that
            the update uses; else None.
        usual: norm of the gradient in earlier updates of this rate, where it is known.
    """

    optimizer: torch.optim.Optimizer
    roots: Roots
    play: Play
    loss: float
    summed: int
    own: Mapping[str, torch.Tensor] | None = None
    usual: float | None = None


class Moved(Change):
    """Parameters have the values that an update on copies gave them."""

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.words = "the update was made on copies"
        self._values = values

    def prepare(self, names: Names) -> None:
        with looks.apart():
            for name, tensor in names.parameters.items():
                value = self._values.get(name)
                if value is not None:
                    tensor.data.copy_(value)
                    self.count += 1


def step_trials(step: Step, clock: Clock) -> Iterator[tuple[str, Trial]]:
    """Trials of the causes of a growing loss: (cause, trial)."""
    after = _loss_after(step, None, clock)
    if after is None:
        return
    words = f"the learning rate of this update was divided by {LESS:g}"
    way = f"{number(step.loss)} → {number(after)} by the update as it is"
    if not after > step.loss * (1 + RISE):
        detail = f"the loss of its batch: {way}; it does not rise"
        yield "lr-too-high", Trial(words, Judgement(NO_DIFFERENCE, detail))
        return
    if step.own is not None:
        alone = _changed(step, _replaced(step, step.own), CLEARED, way, clock)
        for trial in alone:
            yield "zero-grad", trial
            if trial.judgement.result == CONFIRMED:  # of this rate, that gradient is the other half
                yield "lr-too-high", Trial(words, Judgement(NO_DIFFERENCE, trial.judgement.detail))
                return
    slower = _loss_after(step, _slower, clock)
    if slower is None:
        return
    falls = slower < step.loss
    detail = f"the loss of its batch: {way}, {number(slower)} by a tenth of it"
    judgement = Judgement(CONFIRMED if falls else NO_DIFFERENCE, detail)
    yield "lr-too-high", Trial(words, judgement)
    if falls and type(step.optimizer).__name__ in _ADAPTIVE:
        yield "opt-dynamics", Trial(words, judgement)
    if step.summed > 1:
        words = f"the gradient was divided by the {step.summed:,} elements of the loss"
        for trial in _changed(step, _divided(step.summed), words, way, clock):
            falls = falls or trial.judgement.result == CONFIRMED
            yield "loss-scaling", trial
    if not falls and step.usual is not None:
        # Any update is harmless when it is small enough. That of a gradient of the length that
        # others had is so only if the rate suits those.
        words = f"the gradient was clipped to {number(step.usual)}, the norm of earlier ones"
        for trial in _changed(step, _clipped(step.usual), words, way, clock):
            yield "grad-explode", trial


def _changed(step: Step, alter: Alteration, words: str, way: str, clock: Clock) -> Iterator[Trial]:
    """The trial, unless there is no time for it."""
    loss = _loss_after(step, alter, clock)
    if loss is not None:
        detail = f"the loss of its batch: {way}, {number(loss)} with that"
        yield Trial(words, Judgement(CONFIRMED if loss < step.loss else NO_DIFFERENCE, detail))


def _loss_after(step: Step, alter: Alteration | None, clock: Clock) -> float | None:
    """The loss of the same batch after an update; infinite where it is not finite."""
    if clock.spent():
        return None
    values = _update(step.optimizer, step.roots, alter, clock)
    if not values:
        return None
    outcome: Outcome = clock.timed(lambda: step.play(Moved(values)))
    if outcome.problem or outcome.loss is None:
        return None
    return outcome.loss if math.isfinite(outcome.loss) else math.inf


def updated(
    optimizer: torch.optim.Optimizer,
    roots: Roots,
    values: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    clock: Clock,
) -> dict[str, torch.Tensor]:
    """What an optimizer without state makes of parameters and gradients, by name."""
    names = dict(_named(roots))

    def begin(clone: Any) -> None:
        clone.state.clear()
        for live, group in zip(optimizer.param_groups, clone.param_groups, strict=True):
            for param, twin in zip(live["params"], group["params"], strict=True):
                name = names.get(id(param), "")
                if name in values:
                    twin.data.copy_(values[name])
                    grad = gradients.get(name)
                    twin.grad = None if grad is None else grad.clone()

    return _update(optimizer, roots, begin, clock)


def _update(
    optimizer: torch.optim.Optimizer, roots: Roots, alter: Alteration | None, clock: Clock
) -> dict[str, torch.Tensor]:
    """What an update on copies makes of the parameters, by name; empty where it cannot be made."""
    kept: list[Any] = []

    def keep(clone: Any) -> None:
        kept.append(clone)
        if alter is not None:
            alter(clone)

    trace_optimizer(optimizer, names={}, alter=keep, limits=Limits(deadline_s=clock.left_s))
    return dict(_values(optimizer, roots, kept[0])) if kept else {}


def _values(
    optimizer: torch.optim.Optimizer, roots: Roots, clone: Any
) -> Iterator[tuple[str, torch.Tensor]]:
    names = dict(_named(roots))
    for group, moved in zip(optimizer.param_groups, clone.param_groups, strict=True):
        for param, value in zip(group["params"], moved["params"], strict=True):
            if id(param) in names:
                yield names[id(param)], value.detach()


def _named(roots: Roots) -> Iterator[tuple[int, str]]:
    inner = [(prefix, unwrap(root)) for prefix, root in roots]
    for name, param in Names(inner).parameters.items():
        yield id(param), name


def _slower(clone: Any) -> None:
    for group in clone.param_groups:
        group["lr"] = group["lr"] / LESS


def _divided(count: int) -> Alteration:
    def divide(clone: Any) -> None:
        for grad in _gradients(clone):
            grad.div_(count)

    return divide


def _clipped(bound: float) -> Alteration:
    def clip(clone: Any) -> None:
        grads = list(_gradients(clone))
        total = math.sqrt(sum(float(grad.double().square().sum()) for grad in grads))
        if total > bound:
            for grad in grads:
                grad.mul_(bound / total)

    return clip


def _replaced(step: Step, gradients: Mapping[str, torch.Tensor]) -> Alteration:
    """Other gradients, and the momentum that would have built up from them."""
    named = dict(_named(step.roots))

    def replace(clone: Any) -> None:
        for live, group in zip(step.optimizer.param_groups, clone.param_groups, strict=True):
            momentum, damped = group.get("momentum", 0.0), group.get("dampening", 0.0)
            for param, twin in zip(live["params"], group["params"], strict=True):
                grad = gradients.get(named.get(id(param), ""))
                if grad is None or twin.grad is None or twin.grad.layout is not torch.strided:
                    continue
                twin.grad.copy_(grad)
                buffer = clone.state.get(twin, {}).get("momentum_buffer")
                if isinstance(buffer, torch.Tensor) and 0 < momentum < 1:
                    buffer.copy_(grad * ((1 - damped) / (1 - momentum)))

    return replace


def _gradients(clone: Any) -> Iterator[torch.Tensor]:
    for group in clone.param_groups:
        for param in group["params"]:
            if param.grad is not None and param.grad.layout is torch.strided:
                yield param.grad
