"""Parameters that are looked at in one sampled update, before and after it.

Reads only. The copy of the weights lives from the gate to the end of the update.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tuimon.model.samples import Histogram, ParameterSample
from tuimon.train.account import ClipCall
from tuimon.train.control import clip
from tuimon.train.samples.spectrum import absmax_of, evenly, histogram_of, norms_of, zeros_in
from tuimon.train.stats import Plan, measurable

MAX_TENSORS = 128  # parameters of one sample
MAX_ELEMENTS = 1 << 20  # elements that are copied for one sample, 4 MB in single precision


@dataclass(slots=True)
class _Look:
    """One parameter that has its turn.

    Attributes:
        name: as in the layer table.
        param: the parameter; weak, because a step that raises leaves this behind.
        before: its weights before the update, evenly spread, at most `MAX_ELEMENTS`.
        grad_absmax: unscaled and before clipping; None when it is not known.
    """

    name: str
    param: weakref.ref[torch.Tensor]
    before: torch.Tensor | None
    grad_absmax: float | None


class Turns:
    """Whose turn it is among the parameters of one optimizer, and what is known so far.

    The order is that of the plan, so that every parameter has its turn; no random stream is used.

    Attributes:
        histograms: of the weight and the gradient of one parameter.
        foreign: parameters that had their turn and do not lie in host memory.
    """

    def __init__(self) -> None:
        self.histograms: list[Histogram] = []
        self.foreign = 0
        self._next = 0
        self._next_drawn = 0
        self._drawn: int | None = None
        self._looks: list[_Look] = []

    @property
    def waiting(self) -> bool:
        """Whether an update has been looked at from before only."""
        return bool(self._looks)

    def before(
        self, plan: Plan, step: int, calls: Sequence[ClipCall], divisor: float | None
    ) -> None:
        """The update is about to happen.

        Args:
            plan: the parameters of the optimizer.
            step: index of the update.
            calls: clipping that has multiplied the gradients.
            divisor: what the gradients carry; 1 for none, None when it is not known.
        """
        self.drop()
        chosen = self._choose(plan)
        self._draw(plan)
        factors = _factors(plan, chosen, calls, divisor)
        for place, factor in zip(chosen, factors, strict=True):
            param = plan.params[place]
            weights = _host(param)
            if weights is None:
                continue
            grad = _host(param.grad)
            part = None
            if grad is not None:
                part = evenly(weights, MAX_ELEMENTS)
            self._looks.append(
                _Look(
                    plan.names[place],
                    weakref.ref(param),
                    None if part is None else part.clone(),
                    None if grad is None or factor is None else absmax_of(grad) * factor,
                )
            )
        if self._drawn is not None:
            self._draw_gradient(plan, step, calls, divisor)

    def after(self, plan: Plan, step: int, *, updated: bool) -> list[ParameterSample]:
        """The update has happened, or was skipped.

        Args:
            plan: the parameters of the optimizer.
            step: index of the update.
            updated: whether it changed the weights.
        """
        looks, self._looks = self._looks, []
        after = [_host(look.param()) for look in looks]
        pairs = [
            (look.before, now)
            for look, weights in zip(looks, after, strict=True)
            if look.before is not None and (now := _comparable(weights, look.before)) is not None
        ]
        norms = dict(zip((id(b) for b, _ in pairs), norms_of([b for b, _ in pairs]), strict=True))
        moved: dict[int, tuple[float, float]] = {}
        if updated and pairs:
            for old, new in pairs:
                old.sub_(new)
            lengths = norms_of([old for old, _ in pairs])
            for (old, _), length in zip(pairs, lengths, strict=True):
                moved[id(old)] = length, 1.0 - zeros_in(old) / max(1, old.numel())
        items = [
            _sample(look, weights, norms, moved) for look, weights in zip(looks, after, strict=True)
        ]
        if self._drawn is not None and self._drawn < len(plan.params):
            weights = _host(plan.params[self._drawn])
            if weights is not None:
                name = plan.names[self._drawn]
                self._keep(histogram_of(weights, step, "weight", name))
        return items

    def drop(self) -> None:
        """Forget an update that was not finished."""
        self._looks.clear()
        self.histograms = []
        self.foreign = 0

    def _choose(self, plan: Plan) -> list[int]:
        """Places of the parameters whose turn it is."""
        count = len(plan.params)
        chosen: list[int] = []
        elements = 0
        for offset in range(min(count, MAX_TENSORS)):
            place = (self._next + offset) % count
            param = plan.params[place]
            size = min(param.numel(), MAX_ELEMENTS)
            if chosen and elements + size > MAX_ELEMENTS:
                break
            if param.device.type != "cpu":
                self.foreign += 1
            elements += size
            chosen.append(place)
        if count:
            self._next = (self._next + len(chosen)) % count
        return chosen

    def _draw(self, plan: Plan) -> None:
        """Whose histograms are taken: the next parameter that is not a single number."""
        self._drawn = None
        count = len(plan.params)
        for offset in range(count):
            place = (self._next_drawn + offset) % count
            param = plan.params[place]
            if param.numel() > 1 and param.device.type == "cpu":
                self._drawn = place
                self._next_drawn = (place + 1) % count
                return

    def _draw_gradient(
        self, plan: Plan, step: int, calls: Sequence[ClipCall], divisor: float | None
    ) -> None:
        assert self._drawn is not None
        grad = _host(plan.params[self._drawn].grad)
        (factor,) = _factors(plan, [self._drawn], calls, divisor)
        if grad is not None and factor is not None:
            name = plan.names[self._drawn]
            self._keep(histogram_of(grad, step, "gradient", name, factor=factor))

    def _keep(self, histogram: Histogram | None) -> None:
        if histogram is not None:
            self.histograms.append(histogram)


def _comparable(weights: torch.Tensor | None, before: torch.Tensor) -> torch.Tensor | None:
    """The weights after the update that compare with those before it."""
    part = None if weights is None else evenly(weights, MAX_ELEMENTS)
    if part is None or part.shape != before.shape or part.dtype is not before.dtype:
        return None
    return part


def _host(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The plain values of a tensor in host memory."""
    if tensor is None or tensor.device.type != "cpu":
        return None
    return measurable(tensor)


def _factors(
    plan: Plan, chosen: list[int], calls: Sequence[ClipCall], divisor: float | None
) -> list[float | None]:
    """What gives back each gradient unscaled and unclipped; None where that is not known."""
    if divisor is None or not (math.isfinite(divisor) and divisor > 0):
        return [None] * len(chosen)
    acted = [call for call in calls if call.max_norm is not None]
    if not acted:
        return [1.0 / divisor] * len(chosen)
    if any(call.factor is None for call in acted):
        return [None] * len(chosen)
    params = [plan.params[place] for place in chosen]
    clipped = clip.factors_of(acted, params, set())
    each = clipped if isinstance(clipped, list) else [clipped] * len(chosen)
    return [
        1.0 / (factor * divisor) if factor is not None and factor > 0 else None for factor in each
    ]


def _sample(
    look: _Look,
    weights: torch.Tensor | None,
    norms: dict[int, float],
    moved: dict[int, tuple[float, float]],
) -> ParameterSample:
    norm = norms.get(id(look.before))
    length, changed_frac = moved.get(id(look.before), (None, None))
    return ParameterSample(
        name=look.name,
        grad_absmax=look.grad_absmax,
        weight_absmax=None if weights is None else absmax_of(weights),
        weight_norm=norm,
        update_ratio=length / norm if length is not None and norm else None,
        compared=0 if look.before is None else look.before.numel(),
        changed_frac=changed_frac,
    )
