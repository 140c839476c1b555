"""Listens to `Tensor.backward` and `torch.autograd.backward`: the loss, its place, its time."""

from __future__ import annotations

import math
import os
import sys
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from tuimon.model.records import Loss
from tuimon.train.taps.patches import On, Patches

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
        self._before = observer.boundary.guard("loss", self._on_backward)
        self._conclude = observer.boundary.guard("optimizer", observer.inside.conclude)

    def install(self, patches: Patches) -> None:
        """Wrap both functions; a call of one by the other counts once."""
        patches.install(torch.Tensor, "backward", self._wrap)
        patches.install(torch.autograd, "backward", self._wrap)

    def remember_scaled(self, loss: Any, scaled: Any) -> None:
        """`GradScaler.scale` turned `loss` into `scaled` (tensors or sequences of them)."""
        if isinstance(loss, torch.Tensor) and isinstance(scaled, torch.Tensor):
            if len(self._scaled) >= MAX_SCALED:
                self._scaled.clear()
            with torch._C.DisableTorchFunction():  # a loss may be of a class of the script's
                self._note_node(loss)
                self._scaled[id(scaled)] = (weakref.ref(scaled), *_read(loss))
        elif isinstance(loss, list | tuple) and isinstance(scaled, list | tuple):
            for one_loss, one_scaled in zip(loss, scaled, strict=False):
                self.remember_scaled(one_loss, one_scaled)

    def _wrap(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def backward(*args: Any, **kwargs: Any) -> Any:
            # Inside a compiled region nothing may be noted: dynamo traces this function.
            if (
                self._depth
                or not on[0]
                or torch.compiler.is_compiling()
                or observer.off
                or get_ident() != observer.thread
            ):
                return original(*args, **kwargs)
            began_s = self._before(args, kwargs)
            self._depth = 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth = 0
            if began_s is not None:
                times = observer.times
                times.backward_s = (times.backward_s or 0.0) + perf_counter() - began_s
            if observer.inside.waiting:
                self._conclude()
            if began_s is not None and observer.loop.clearing.due:
                observer.loop.after_backward()
            return result

        return backward

    def _on_backward(self, args: Any, kwargs: Any) -> float | None:
        """Account for the loss; returns when backward begins, None where it is not the user's."""
        if _graph_task() != -1 or _interpreters() is not None:
            return None
        began_s = perf_counter()
        observer = self._observer
        if observer.clips.calls or observer.clips.held or observer.roster.on_device:
            observer.gradients_change()
        tensors = args[0] if args else kwargs.get("tensors", kwargs.get("self"))
        plain = type(tensors) is torch.Tensor
        graphs = [tensors] if plain else _graphs(tensors)
        lines, nodes = observer.examiner.lines, observer.examiner.nodes
        due = lines.backwards + 1 >= lines.next_due
        if due or nodes.roots or lines.window is not None or lines.stuck:
            observer.examiner.before_backward(graphs)
        else:
            lines.backwards += 1
        if observer.loop.clearing.due:
            observer.loop.before_backward(graphs)
        if observer.losses.calls and observer.roster.gradients_are_cleared():
            observer.losses.start_sum_again()
        value = self._value_of(tensors) if plain else self._value(tensors)
        observer.backward_calls += 1
        is_bad = value is not None and not math.isfinite(value)
        observer.losses.add(value, is_bad)
        batches = observer.batches
        jumped = value is not None and not is_bad and batches.jumps(value)
        if batches.due or jumped or is_bad is not batches.was_bad:
            batches.on_loss(graphs, is_bad, jumped)
        if value is not None and is_bad:
            observer.session.publish(
                Loss(
                    step=observer.roster.next_step(),
                    value=value,
                    time_ns=time.time_ns(),
                    site=call_site(),
                )
            )
        times = observer.times
        if is_bad:
            observer.examiner.on_loss(graphs, value)
        if times.forward_began_s is not None:
            times.forward_s = (times.forward_s or 0.0) + began_s - times.forward_began_s
            times.forward_began_s = None
        ready_s = perf_counter()
        times.cost_s += ready_s - began_s
        return ready_s

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
        with torch._C.DisableTorchFunction():  # a class of the script's is asked nothing
            return self._value_of(tensor)

    def _value_of(self, tensor: torch.Tensor) -> float | None:
        if self._scaled:
            reference, value, late = self._scaled.pop(id(tensor), (None, None, None))
            if reference is None or reference() is not tensor:
                # Something made of a scaled loss: its value without the scale is not known here.
                self._scaled.clear()
                return None
        else:
            if self._observer.roster.loss_node is None:
                self._note_node(tensor)
            value, late = _read(tensor)
        if late is not None:
            self._observer.losses.pending += (late,)
        return value

    def _note_node(self, tensor: torch.Tensor) -> None:
        roster = self._observer.roster
        if roster.loss_node is None and tensor.grad_fn is not None:
            roster.loss_node = tensor.grad_fn.name()


def _graphs(tensors: Any) -> list[torch.Tensor]:
    """The tensors whose graphs a backward call is about to walk."""
    listed = tensors if isinstance(tensors, list | tuple) else [tensors]
    return [each for each in listed if isinstance(each, torch.Tensor)]


def _read(loss: torch.Tensor) -> tuple[float | None, torch.Tensor | None]:
    """(its value, None) in host memory; (None, the loss cut from its graph) on a device."""
    if loss.numel() != 1 or loss.dtype.is_complex:
        return None, None
    if loss.is_cpu:
        return float(loss.item()), None
    return None, loss.detach() if loss.is_cuda else None


def call_site() -> str:
    """`file:line` of the innermost frame that is neither torch's nor ours.

    Relative to the working folder where the file lies below it, as a person would name it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH_FOLDER, _OWN_FOLDER)):
            here = os.getcwd() + os.sep
            return f"{name.removeprefix(here)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
