"""Hooks on the user's own instances: optimizer before and after a step, forward of the root."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tuimon.train.observer import UPDATE_TAP, Observer
from tuimon.train.track import Track, wrap_closure

_graph_task = torch._C._current_graph_task_id
_interpreters = torch._C._functorch.peek_interpreter_stack
_tracer = torch._C._get_tracing_state


def _is_capturing() -> bool:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    return torch.cuda.is_current_stream_capturing()


# Whether a CUDA graph is being recorded on the current stream: never where torch has no CUDA.
is_capturing: Callable[[], bool] = _is_capturing if torch.version.cuda is not None else bool


def hook_optimizer(track: Track, observer: Observer) -> None:
    """Put both step hooks on the optimizer of a track; torch leaves hooks out of its copies."""
    optimizer = track.optimizer
    assert optimizer is not None
    hooks = _StepHooks(track, observer)
    guard = observer.boundary.guard
    track.attach(
        [
            optimizer.register_step_pre_hook(guard(UPDATE_TAP, hooks.before)),
            optimizer.register_step_post_hook(guard(UPDATE_TAP, hooks.after)),
        ]
    )


class _StepHooks:
    """What happens before and after a step of one optimizer."""

    def __init__(self, track: Track, observer: Observer) -> None:
        self._track = track
        self._observer = observer
        self._look = observer.boundary.guard(UPDATE_TAP, track.look)

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """New arguments when a closure has to be watched, else None."""
        observer, track = self._observer, self._track
        if observer.off or is_capturing():
            return None
        began_s = perf_counter()
        if _graph_task() != -1:
            observer.inside.before(track)
            observer.spent(began_s)
            return None
        if observer.current is not None:
            if observer.is_nested():
                observer.nested += 1
                return None
            observer.nested = 0
        observer.current = track
        observer.thread = get_ident()
        changed = None
        if observer.scaling is not track:
            track.enter()
            if kwargs or len(args) > 1:
                changed = self._watch_closure(args, kwargs)
                track.update.has_closure = changed is not None
            if changed is None:
                scale = optimizer.__dict__.get("grad_scale")
                if scale is not None:
                    scale = _host_number(scale)
                track.look(scale, scaled=scale is not None)
        if track.update.left_out:
            track.update.take_away(optimizer)
        elif observer.rates.active:
            track.update.put_on_rates(observer.rates, track.index, optimizer)
        ready_s = track.update.began_s = perf_counter()
        observer.times.cost_s += ready_s - began_s
        return changed

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The step is over."""
        observer, track = self._observer, self._track
        if observer.nested > 0:
            observer.nested -= 1
            return
        if observer.current is not track:
            return
        began_s = track.update.end()
        if track.update.left_out:
            track.update.give_back()
        if track.update.lrs is not None:
            track.update.take_off_rates()
        observer.current = None
        if observer.scaling is not track:
            track.finish()
        observer.times.cost_s += perf_counter() - began_s

    def _watch_closure(self, args: Any, kwargs: Any) -> Any:
        """New arguments whose closure is followed by a look at the gradients; None without one."""
        if callable(kwargs.get("closure")):
            closure = wrap_closure(kwargs["closure"], self._look)
            return args, {**kwargs, "closure": closure}
        if len(args) > 1 and callable(args[1]):
            return (args[0], wrap_closure(args[1], self._look), *args[2:]), kwargs
        return None


class BeforeForward:
    """Forward pre-hook of a root module: the boundary, and the beginning of a forward.

    A copied or pickled module must work where tuimon is not installed and report nothing, so the
    hook copies and pickles to an inert callable of the standard library.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._body = observer.boundary.guard("forward", self._before)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        # First, and alone: traced into a compiled region this must stay free of effects.
        if torch.compiler.is_compiling():
            return
        self._body(module, args, kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        observer = self._observer
        if observer.off or get_ident() != observer.thread:
            return
        times = observer.times
        if not (module.training and torch.is_grad_enabled()):
            times.fetched_s = None
            observer.batches.passes.left()
            observer.loop.on_other_forward(module)
            return
        # Checkpointing runs forwards inside backward, functorch under its own interpreters; a
        # tracer would make whatever is read here a part of what it traces.
        if _graph_task() != -1 or _interpreters() is not None or is_capturing():
            return
        if _tracer() is not None:
            return
        observer.loop.on_training_forward(module)
        if observer.inside.waiting:
            observer.inside.conclude()
        if observer.gate.busy and not observer.explicit and observer.current is None:
            observer.reach_boundary()
        if observer.extras.armed:
            observer.extras.before_forward(module)
        if observer.breaks.listens:
            observer.breaks.before_forward(module)
        if times.fetched_s is not None:
            times.data_s = (times.data_s or 0.0) + times.fetched_s
            times.fetched_s = None
        began_s = perf_counter()
        observer.batches.on_forward(module, args, kwargs)
        scenes, lines = observer.scenes, observer.examiner.lines
        if scenes.keeps or lines.due or lines.stuck:
            scenes.enter(module, args, kwargs)
        ready_s = perf_counter()
        times.cost_s += ready_s - began_s
        if times.forward_began_s is None:
            times.forward_began_s = ready_s


def _host_number(scale: Any) -> float | None:
    """The scale that a fused optimizer will take out of the gradients itself."""
    if isinstance(scale, torch.Tensor) and scale.device.type == "cpu":
        return float(scale)
    return None
