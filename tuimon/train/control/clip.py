"""Clips as the user would: torch's own functions, parameters in model order, once per optimizer.

Holds the pristine torch functions, so that tuimon's own clipping does not meet its own taps.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.utils.clip_grad as torch_clip

from tuimon.model.records import CLIP_OFF, CLIP_ON, CLIP_USER
from tuimon.train.account import ClipCall, Clips, Norms
from tuimon.train.stats import measurable

CLIP_EPSILON = 1e-6  # added to the total norm by torch's `clip_grads_with_norm_`


class Clipping:
    """What was asked for. Written at the gate by the training thread, read by the taps.

    Attributes:
        mode: who decides, "user", "on" or "off".
        max_norm: tuimon's bound; None until somebody named one.
        seen_max_norm: the bound of the script's own clipping as last seen.
    """

    def __init__(self) -> None:
        self.mode = CLIP_USER
        self.max_norm: float | None = None
        self.seen_max_norm: float | None = None

    @property
    def bound(self) -> float | None:
        """tuimon's bound if clipping were switched on without naming one."""
        return self.max_norm if self.max_norm is not None else self.seen_max_norm

    def describe(self) -> str:
        """For the ledger: "off", "user" or "on 1"."""
        return f"{CLIP_ON} {self.max_norm:g}" if self.mode == CLIP_ON else self.mode

    def effective(self, users: float) -> float | None:
        """The bound to use in a clipping call of the script; None to leave gradients alone."""
        if self.mode == CLIP_OFF:
            return None
        return self.max_norm if self.mode == CLIP_ON and self.max_norm is not None else users


def factor(max_norm: float, total: float) -> float:
    """What torch multiplies gradients with: min(max_norm / (total + 1e-6), 1), NaN stays NaN."""
    coefficient = max_norm / (total + CLIP_EPSILON)
    return coefficient if math.isnan(coefficient) else min(coefficient, 1.0)


def called(
    params: Sequence[torch.Tensor], bound: float | None, total: torch.Tensor, mode: str
) -> ClipCall:
    """Account for a clipping whose total norm is known; one on a device is not read."""
    call = ClipCall(params, bound, mode)
    norm = _agreed(total)
    if bound is not None and norm is not None:
        if norm.device.type == "cpu":
            call.factor = factor(bound, float(norm))
        else:
            call.total = norm.detach()
    return call


def _agreed(total: torch.Tensor) -> torch.Tensor | None:
    """The plain tensor of a norm that is the same on every rank.

    None where ranks still hold parts of it: putting them together would be a collective of ours.
    """
    if type(total) is torch.Tensor:
        return total
    placements = getattr(total, "placements", ())
    if not placements or not all(placement.is_replicate() for placement in placements):
        return None
    local = total.to_local()  # type: ignore[attr-defined]
    return local if type(local) is torch.Tensor else None


def bound_of(calls: Sequence[ClipCall]) -> float | None:
    """The tightest bound that was in force; None without clipping or with an infinite one."""
    bounds = [call.max_norm for call in calls if call.max_norm is not None]
    return min((bound for bound in bounds if math.isfinite(bound)), default=None)


def factors_of(
    calls: Sequence[ClipCall], params: Sequence[torch.Tensor], covering: set[tuple[int, int, int]]
) -> float | list[float] | None:
    """What each gradient was multiplied with: one number for all, or one for each.

    Args:
        calls: clipping that did multiply.
        params: the parameters in question.
        covering: keys of lists that are known to hold all of `params`; added to.
    """
    if len(calls) == 1:
        call = calls[0]
        if call.key not in covering and {*map(id, params)} <= {*map(id, call.params)}:
            covering.add(call.key)
        if call.key in covering:
            return call.factor
    factors = [1.0] * len(params)
    for call in calls:
        inside = {id(param) for param in call.params}
        for index, param in enumerate(params):
            if id(param) in inside and call.factor is not None:
                factors[index] *= call.factor
    return factors


@contextmanager
def spying(keep: Norms, held: list[torch.Tensor], thread: int) -> Iterator[None]:
    """While active, keep the per-tensor norms that torch's total norm computes anyway.

    Args:
        keep: filled with id of a gradient -> norm; the first norm of a gradient stays.
        held: filled with the gradients, so that their ids stay theirs.
        thread: ident of the only thread that is listened to.
    """
    original: Callable[..., Any] = torch._foreach_norm

    def spy(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        norms = original(tensors, *args, **kwargs)
        order = args[0] if args else kwargs.get("ord", 2)
        if order == 2 and threading.get_ident() == thread:
            with torch._C.DisableTorchFunction():  # a mode sees even the look at a dtype
                for tensor, norm in zip(tensors, norms, strict=True):
                    # A half-precision norm overflows long before its gradient does; that of a
                    # distributed tensor lies in parts on all ranks.
                    if type(norm) is not torch.Tensor:
                        continue
                    if norm.dtype in (torch.float32, torch.float64) and id(tensor) not in keep:
                        keep[id(tensor)] = norm
                        held.append(tensor)
        return norms

    torch._foreach_norm = spy  # type: ignore[assignment]
    try:
        yield
    finally:
        if torch._foreach_norm is spy:
            torch._foreach_norm = original


def spied_total(params: Sequence[torch.Tensor], clips: Clips, thread: int) -> torch.Tensor | None:
    """torch's own total norm of our gradients; per-tensor norms are kept on the way."""
    grads = [param.grad for param in params if param.grad is not None]
    if not grads or total_norm is None:
        return None
    with spying(clips.norms, clips.held, thread):
        return total_norm(grads)


def measure_missing(params: Sequence[torch.Tensor], keep: Norms, held: list[torch.Tensor]) -> None:
    """Norms of gradients that torch did not compute as L2 in single precision on its way."""
    missing = [
        (grad, values)
        for param in params
        if (grad := param.grad) is not None
        and id(grad) not in keep
        and (values := measurable(grad)) is not None
    ]
    if not missing:
        return
    with torch.no_grad():
        for grad, values in missing:
            dtype = torch.float64 if values.dtype is torch.float64 else torch.float32
            keep[id(grad)] = torch.linalg.vector_norm(values, 2.0, dtype=dtype)
            held.append(grad)


# torch's own clipping, taken before a tap stands in its place. None before torch 2.6.
total_norm: Callable[..., torch.Tensor] | None = getattr(torch_clip, "_get_total_norm", None)
multiply: Callable[..., None] | None = getattr(torch_clip, "_clip_grads_with_norm_", None)
