"""Trials of an update that made something bad of finite gradients: it is made again on copies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tuimon.model.autopsy import NOT_REPRODUCED, OPERATION, Autopsy
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE, REFUTED
from tuimon.train.autopsy.optimizing import trace_optimizer
from tuimon.train.autopsy.tracer import Limits
from tuimon.train.trials.changes import told
from tuimon.train.trials.clocking import Clock, Trial
from tuimon.train.trials.judging import Judgement

if TYPE_CHECKING:
    from tuimon.diagnose.findings import Finding
    from tuimon.train.trials.bench import Incident

_HALF = (torch.float16, torch.bfloat16)
LESS = 10.0  # the learning rate is divided by that

# Changes the copy of an optimizer, and says how much of it.
Alteration = Callable[[Any], int]


def try_update(
    finding: Finding, autopsy: Autopsy, incident: Incident, clock: Clock
) -> Iterator[Trial]:
    """Make the update again with one thing changed, until that confirms the cause."""
    track = incident.track
    optimizer = None if track is None else track.optimizer
    if track is None or optimizer is None:
        return
    names = dict(zip(map(id, track.plan.params), track.plan.names, strict=True))
    for words, alter in _ALTERATIONS.get(finding.cause, ()):
        if clock.spent():
            return
        counted = _Counted(alter)
        trace = functools.partial(
            trace_optimizer,
            optimizer,
            names=names,
            alter=counted,
            limits=Limits(deadline_s=clock.left_s),
        )
        found = clock.timed(trace)
        judgement = _judge(autopsy, found, counted.count)
        yield Trial(words, judgement)
        if judgement.result == CONFIRMED:
            return


class _Counted:
    """An alteration, with how much it has changed."""

    def __init__(self, alter: Alteration) -> None:
        self._alter = alter
        self.count = 0

    def __call__(self, clone: Any) -> None:
        self.count = self._alter(clone)


def _judge(autopsy: Autopsy, found: Any, changed: int) -> Judgement:
    if not changed:
        return Judgement(NO_DIFFERENCE, "nothing of that kind was there to be changed")
    if found.verdict == NOT_REPRODUCED:
        detail = f"with that the update is finite ({told(changed, 'place')} changed)"
        return Judgement(CONFIRMED, detail)
    if found.verdict != OPERATION or found.first is None or autopsy.first is None:
        why = "; ".join(found.notes[:2]) or "the update was not made again"
        return Judgement(NO_DIFFERENCE, why)
    if found.first.op.strip("_") == autopsy.first.op.strip("_"):
        return Judgement(REFUTED, f"{found.first.op} still gives a value that is not finite")
    return Judgement(NO_DIFFERENCE, f"{found.first.op} gives a value that is not finite then")


def _tensors(clone: Any) -> Iterator[torch.Tensor]:
    for group in clone.param_groups:
        yield from group["params"]


def _epsilon(clone: Any) -> int:
    """An epsilon that the numbers of the update can tell from 0."""
    count = 0
    for group in clone.param_groups:
        kinds = [param.dtype for param in group["params"] if param.dtype.is_floating_point]
        least = max((float(torch.finfo(kind).eps) for kind in kinds), default=0.0)
        if isinstance(group.get("eps"), float) and group["eps"] < least:
            group["eps"] = least
            count += 1
    return count


def _widened(clone: Any) -> int:
    """Weights, gradients and state in float32."""
    count = 0
    for param in _tensors(clone):
        if param.dtype in _HALF:
            grad, param.grad = param.grad, None
            param.data = param.data.float()
            param.grad = None if grad is None else grad.float()
            count += 1
    for state in clone.state.values():
        for key, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor) and value.dtype in _HALF:
                state[key] = value.float()
                count += 1
    return count


def _slower(clone: Any) -> int:
    """A tenth of the learning rate."""
    for group in clone.param_groups:
        group["lr"] = group["lr"] / LESS
    return len(clone.param_groups)


_EPSILON = ("the update was made with an epsilon that its numbers can tell from 0", _epsilon)
_WIDENED = ("the update was made in float32", _widened)
_SLOWER = ("the update was made with a tenth of the learning rate", _slower)
_ALTERATIONS: dict[str, tuple[tuple[str, Alteration], ...]] = {
    "eps-underflow": (_EPSILON, _WIDENED),
    "div-zero": (_EPSILON,),
    "fp16-overflow": (_WIDENED,),
    "lr-too-high": (_SLOWER,),
}
