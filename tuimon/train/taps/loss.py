"""Listens to `Tensor.backward` and `torch.autograd.backward`: the loss, its place, its time."""

from __future__ import annotations

import math
import os
import sys
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from tuimon.model.records import Loss
from tuimon.train.stats import host_number
from tuimon.train.taps.patches import Patches

if TYPE_CHECKING:
    from tuimon.train.observer import Observer

_TORCH_FOLDER = os.path.dirname(torch.__file__)
_OWN_FOLDER = os.path.dirname(os.path.dirname(__file__))
MAX_SCALED = 64  # scaled losses remembered until their backward

_graph_task = torch._C._current_graph_task_id
_interpreters = torch._C._functorch.peek_interpreter_stack


# The scaled tensor, the loss it came from, and that loss itself when it lies on a device.
_Scaled = tuple[weakref.ref[torch.Tensor], float | None, torch.Tensor | None]


class LossTap:
    """Reads losses on the host at once, those on a device not at all.

    `_scaled` maps the id of a tensor returned by `GradScaler.scale` to the loss it came from.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._depth = 0
        self._scaled: dict[int, _Scaled] = {}
        guard = observer.boundary.guard
        self._before = guard("loss", self._on_backward)
        self._after = guard("loss", self._on_backward_done)

    def install(self, patches: Patches) -> None:
        """Wrap both functions; a call of one by the other counts once."""
        patches.install(torch.Tensor, "backward", self._wrap)
        patches.install(torch.autograd, "backward", self._wrap)

    def remember_scaled(self, loss: Any, scaled: Any) -> None:
        """`GradScaler.scale` turned `loss` into `scaled` (tensors or sequences of them)."""
        if isinstance(loss, torch.Tensor) and isinstance(scaled, torch.Tensor):
            if len(self._scaled) >= MAX_SCALED:
                self._scaled.clear()
            self._note_node(loss)
            self._scaled[id(scaled)] = (weakref.ref(scaled), host_number(loss), _late(loss))
        elif isinstance(loss, list | tuple) and isinstance(scaled, list | tuple):
            for one_loss, one_scaled in zip(loss, scaled, strict=False):
                self.remember_scaled(one_loss, one_scaled)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        observer = self._observer

        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._depth or not observer.listening or get_ident() != observer.thread:
                return original(*args, **kwargs)
            began_s = self._before(args, kwargs)
            self._depth += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
            if began_s is not None:
                self._after(began_s)
            return result

        return backward

    def _on_backward(self, args: Any, kwargs: Any) -> float | None:
        """Account for the loss; returns when backward begins, None where it is not the user's."""
        if _graph_task() != -1 or _interpreters() is not None:
            return None
        began_s = time.perf_counter()
        observer = self._observer
        observer.gradients_change()
        tensors = args[0] if args else kwargs.get("tensors", kwargs.get("self"))
        value = self._value(tensors)
        observer.backward_calls += 1
        observer.losses.add(value)
        if value is not None and not math.isfinite(value):
            observer.session.publish(
                Loss(
                    step=observer.roster.next_step(),
                    value=value,
                    time_ns=time.time_ns(),
                    site=_call_site(),
                )
            )
        times = observer.times
        if times.forward_began_s is not None:
            times.forward_s = (times.forward_s or 0.0) + began_s - times.forward_began_s
            times.forward_began_s = None
        ready_s = time.perf_counter()
        times.cost_s += ready_s - began_s
        return ready_s

    def _on_backward_done(self, began_s: float) -> None:
        times = self._observer.times
        times.backward_s = (times.backward_s or 0.0) + time.perf_counter() - began_s

    def _value(self, tensors: Any) -> float | None:
        """The unscaled loss of one backward call; the sum when it was given several."""
        if isinstance(tensors, torch.Tensor):
            return self._one(tensors)
        if not isinstance(tensors, list | tuple):
            return None
        values = [self._one(each) for each in tensors if isinstance(each, torch.Tensor)]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    def _one(self, tensor: torch.Tensor) -> float | None:
        if self._scaled:
            reference, value, late = self._scaled.pop(id(tensor), (None, None, None))
            if reference is not None and reference() is tensor:
                if late is not None:
                    self._observer.losses.pending.append(late)
                return value
            # Something made of a scaled loss: its value without the scale is not known here.
            self._scaled.clear()
            return None
        self._note_node(tensor)
        if (late := _late(tensor)) is not None:
            self._observer.losses.pending.append(late)
        return host_number(tensor)

    def _note_node(self, tensor: torch.Tensor) -> None:
        observer = self._observer
        if observer.roster.loss_node is None and tensor.grad_fn is not None:
            observer.roster.loss_node = tensor.grad_fn.name()


def _late(loss: torch.Tensor) -> torch.Tensor | None:
    """A loss on a device, cut from its graph, to be read when it has arrived."""
    return loss.detach() if loss.device.type == "cuda" and loss.numel() == 1 else None


def _call_site() -> str:
    """`file:line` of the innermost frame that is neither torch's nor ours."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH_FOLDER, _OWN_FOLDER)):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
