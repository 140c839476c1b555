"""What happened since the last update: losses, times, clipping calls. Plain data, no hooks."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from tuimon.model.records import CLIP_USER
from tuimon.train.stats import Measured

Norms = dict[int, torch.Tensor]  # id of a gradient -> its L2 norm


class Losses(msgspec.Struct):
    """The backward calls between two updates.

    Attributes:
        calls: number of outermost backward calls.
        last: value of the newest; None when it could not be read on the host.
        is_bad: that value is known and not finite.
        total: sum of those whose gradients add up; None when one of them could not be read.
        pending: those of them that are still on a device, in order.
        taken_by: ids of the optimizers whose update was attributed to these losses.
    """

    calls: int = 0
    last: float | None = None
    total: float | None = None
    pending: tuple[torch.Tensor, ...] = ()
    taken_by: tuple[int, ...] = ()
    is_bad: bool = False

    def start_sum_again(self) -> None:
        """Gradients were cleared: what follows does not add up with what was."""
        self.total = 0.0
        self.pending = ()

    def add(self, value: float | None, is_bad: bool) -> None:
        """Account for one backward call; whether its value is known and not finite."""
        if self.calls == 0:
            self.total = value
        elif value is None or self.total is None:
            self.total = None
        else:
            self.total += value
        self.last, self.is_bad = value, is_bad
        self.calls += 1


@dataclass(slots=True)
class Times:
    """Host seconds since the last update of the primary optimizer; None when not seen."""

    data_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    cost_s: float = 0.0
    step_s: float | None = None
    examined_s: float = 0.0  # autopsies; no part of the step
    fetched_s: float | None = None  # data waits not yet followed by a training forward
    forward_began_s: float | None = None

    def reset(self) -> None:
        """A new update; waits for data that no forward followed stay."""
        self.step_s = self.data_s = self.forward_s = self.backward_s = self.forward_began_s = None
        self.cost_s = self.examined_s = 0.0


def host_scale(scaler: Any) -> float | None:
    """The loss scale in force when it lies in host memory."""
    scale = getattr(scaler, "_scale", None)
    if isinstance(scale, torch.Tensor) and scale.device.type == "cpu":
        return float(scale)
    return None


@dataclass(slots=True)
class ScalerView:
    """The GradScaler at one update; the host figures are None where they lie on a device."""

    host_scale: float | None = None
    host_found_inf: bool | None = None
    scale: torch.Tensor | None = None
    found_inf: Sequence[torch.Tensor] = ()


@dataclass(slots=True)
class ClipCall:
    """One clipping of gradients, by the script or by tuimon.

    Attributes:
        params: what it was given.
        max_norm: the bound in force; None when the multiplication was suppressed, infinite when
            elements were clipped by value.
        mode: who decided about it.
        factor: what gradients were multiplied with; None when it is on a device or 1 by "off".
        total: the total norm while it is on a device.
    """

    params: Sequence[torch.Tensor]
    max_norm: float | None
    mode: str = CLIP_USER
    factor: float | None = None
    total: torch.Tensor | None = None

    def touches(self, ids: Container[int]) -> bool:
        """Whether it clipped any of these parameters."""
        return any(map(ids.__contains__, map(id, self.params)))

    @property
    def key(self) -> tuple[int, int, int]:
        """What tells the same list of parameters apart from another one, cheaply."""
        return len(self.params), id(self.params[0]), id(self.params[-1])


@dataclass(slots=True)
class Clips:
    """Clipping since the last update, with the norms it computed on the way.

    `held` keeps the gradients alive whose ids are keys of `norms`, until the update or the next
    backward. `before_values` has what the gradients of an optimizer (by the index of its track)
    were before a clipping that hides it: of elements, or by a norm that is not finite.
    """

    calls: list[ClipCall] = field(default_factory=list)
    norms: Norms = field(default_factory=dict)
    held: list[torch.Tensor] = field(default_factory=list)
    before_values: dict[int, Measured] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything."""
        self.calls.clear()
        self.norms.clear()
        self.held.clear()
        self.before_values.clear()

    def forget(self, ids: Container[int], grads: Container[int]) -> None:
        """Forget what concerns these parameters and gradients (by id) only."""
        self.calls = [call for call in self.calls if not all(id(p) in ids for p in call.params)]
        self.held = [grad for grad in self.held if id(grad) not in grads]
        left = {id(grad) for grad in self.held}
        self.norms = {key: norm for key, norm in self.norms.items() if key in left}
