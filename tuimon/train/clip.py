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
from tuimon.train.stats import measurable

CLIP_EPSILON = 1e-6  # added to the total norm by torch's `clip_grads_with_norm_`

Norms = dict[int, torch.Tensor]  # id of a gradient -> its L2 norm


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
            for tensor, norm in zip(tensors, norms, strict=True):
                # A half-precision norm overflows long before its gradient does.
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
