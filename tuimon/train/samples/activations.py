"""Looks at the outputs of modules during one training forward, and at no other time.

Hooks are put on in the forward pre-hook of a root and taken off when that forward ends; outside
of it no module but the root can carry one. They read, and return nothing.
"""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import nn

from tuimon.model.samples import Activation, Histogram
from tuimon.model.text import plain
from tuimon.train.leaves import leaves_of
from tuimon.train.samples.spectrum import (
    MAX_COUNTED,
    absmax_of,
    evenly,
    histogram_of,
    silent_units,
    zeros_in,
)
from tuimon.train.stats import measurable

MAX_OUTPUTS = 16  # tensors of one output that are looked at, of nested containers too

_graph_task = torch._C._current_graph_task_id
_interpreters = torch._C._functorch.peek_interpreter_stack


@dataclass(slots=True)
class _Tally:
    """One module over the calls of one forward."""

    calls: int = 0
    numel: int = 0
    total: float = 0.0
    squares: float = 0.0
    absmax: float = 0.0
    zeros: int = 0
    counted: int = 0
    ones: int = 0
    kind: str = ""
    silent: torch.Tensor | None = None
    dtype: torch.dtype | None = None

    def add(self, values: torch.Tensor, dtype: torch.dtype) -> None:
        """Account for one output tensor."""
        self.dtype = self.dtype or dtype
        self.numel += values.numel()
        absmax = absmax_of(values)
        self.absmax = absmax if math.isnan(absmax) else max(self.absmax, absmax)
        wide = torch.float64 if values.dtype is torch.float64 else torch.float32
        total = float(values.sum(dtype=wide))
        norm = float(torch.linalg.vector_norm(values, 2.0, dtype=wide))
        if math.isfinite(absmax) and not (math.isfinite(total) and math.isfinite(norm)):
            total = float(values.sum(dtype=torch.float64))
            norm = float(torch.linalg.vector_norm(values, 2.0, dtype=torch.float64))
        self.total += total
        self.squares += norm * norm
        part = evenly(values, MAX_COUNTED)
        if part is not None:
            self.counted += part.numel()
            zeros = zeros_in(part)
            self.zeros += zeros
            if absmax == 1.0:
                self.ones += int(torch.count_nonzero(part.abs() == 1.0))
            self._count_silent(values, zeros)

    def _count_silent(self, values: torch.Tensor, zeros: int) -> None:
        """Units without any output so far; a shape that changes from call to call has no units."""
        silent = silent_units(values, bool(zeros))
        if silent is None or (self.silent is not None and self.silent.shape != silent.shape):
            return
        self.silent = silent if self.silent is None else self.silent & silent

    def activation(self, module: str) -> Activation:
        """What is published about it."""
        headroom = None
        if self.dtype is not None and self.absmax > 0:
            headroom = torch.finfo(self.dtype).max / self.absmax
        return Activation(
            module=module,
            calls=self.calls,
            numel=self.numel,
            mean=self.total / self.numel,
            rms=math.sqrt(self.squares / self.numel),
            absmax=self.absmax,
            zero_frac=self.zeros / self.counted if self.counted else None,
            headroom=headroom,
            dtype=str(self.dtype).removeprefix("torch."),
            kind=self.kind,
            one_frac=self.ones / self.counted if self.counted and self.absmax == 1.0 else None,
            silent_frac=None if self.silent is None else float(self.silent.double().mean()),
        )


class _ForwardHook:
    """A hook that copies and pickles to a callable of the standard library that does nothing."""

    def __init__(self, body: Callable[[Any], object]) -> None:
        self._body = body

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        # First, and alone: traced into a compiled region this must stay free of effects.
        if torch.compiler.is_compiling():
            return
        self._body(output)

    def __deepcopy__(self, memo: Any) -> Any:
        return nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")


class ForwardWatch:
    """The outputs of one forward of one root. Used by the training thread only.

    Attributes:
        left_out: reason -> how many modules were not measured for it.
        histogram: of the first output of the module that was asked for.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        guard: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda body: body,
    ) -> None:
        """Begin with nothing seen; `guard` keeps the failures of a body from the script."""
        self._clock = clock
        self._guard = guard
        self._thread = get_ident()
        self._open = False
        self._handles: list[Any] = []
        self._root_handles: list[Any] = []
        self._tallies: dict[str, _Tally] = {}
        self._kinds: dict[str, str] = {}
        self._drawn = ""
        self._step = 0
        self.left_out: Counter[str] = Counter()
        self.histogram: Histogram | None = None
        self.spent_s = 0.0

    def put_on(
        self, root: nn.Module, chosen: list[tuple[str, nn.Module]], *, step: int, drawn: str
    ) -> None:
        """Hook the chosen modules until the running forward of `root` ends.

        Args:
            root: whose forward is about to run.
            chosen: (name, module); may hold the root itself.
            step: of the update that the forward leads to.
            drawn: name of the module whose histogram is taken.
        """
        self._step, self._drawn = step, drawn
        try:
            for name, module in chosen:
                self._kinds[name] = plain(type(module).__name__, 60)
                hook = _ForwardHook(self._guard(functools.partial(self._seen, name)))
                handle = module.register_forward_hook(hook)
                (self._root_handles if module is root else self._handles).append(handle)
            # Also called when the forward raises.
            end = _ForwardHook(self._guard(self._ended))
            self._root_handles.append(root.register_forward_hook(end, always_call=True))
        except BaseException:
            self.take_off()
            raise
        self._open = True

    @property
    def is_open(self) -> bool:
        """Whether the forward is still running."""
        return self._open

    def take_off(self) -> None:
        """Remove every hook."""
        self._open = False
        for handle in (*self._handles, *self._root_handles):
            handle.remove()
        self._handles.clear()
        self._root_handles.clear()

    def activations(self) -> list[Activation]:
        """What was seen, in the order of the first call."""
        return [tally.activation(name) for name, tally in self._tallies.items() if tally.numel]

    def _ended(self, output: Any) -> None:
        if get_ident() != self._thread:
            return
        began_s = self._clock()
        self._open = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # While an exception passes, torch walks the hooks of the root: they go later.
        if sys.exc_info()[0] is None:
            self.take_off()
        self.spent_s += self._clock() - began_s

    def _seen(self, name: str, output: Any) -> None:
        """One call of a module has returned."""
        if not self._open or get_ident() != self._thread:
            return
        # Checkpointing calls modules again inside backward.
        if _graph_task() != -1:
            return
        began_s = self._clock()
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                self._measure(name, output)
        except Exception as error:
            self.left_out[type(error).__name__] += 1
        self.spent_s += self._clock() - began_s

    def _measure(self, name: str, output: Any) -> None:
        if _interpreters() is not None or torch._C._get_tracing_state() is not None:
            self.left_out["inside a transformation"] += 1
            return
        tally = self._tallies.setdefault(name, _Tally(kind=self._kinds.get(name, "")))
        tally.calls += 1
        found, left_out = leaves_of((output,), {}, MAX_OUTPUTS)
        if left_out:
            self.left_out["more outputs than are looked at"] += 1
        for _, tensor in found:
            if tensor.device.type != "cpu":
                self.left_out["not in host memory"] += 1
                continue
            values = measurable(tensor)
            if values is None:
                continue
            tally.add(values, tensor.dtype)
            if name == self._drawn and self.histogram is None:
                self.histogram = histogram_of(values, self._step, "activation", name)


def leaf_modules(root: nn.Module, left_out: Counter[str]) -> list[tuple[str, nn.Module]]:
    """(path, module) of every module without children that may be hooked, each once."""
    return open_modules(root, left_out, leaves=True)


def open_modules(
    root: nn.Module, left_out: Counter[str], *, leaves: bool
) -> list[tuple[str, nn.Module]]:
    """(path, module) of every module that may be hooked, each once.

    Args:
        root: where to begin.
        left_out: filled with reason -> number of modules below what is never entered.
        leaves: those without children only.
    """
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()

    def walk(path: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        if (reason := _closed_because(module)) is not None:
            left_out[reason] += sum(1 for each in module.modules() if not each._modules)
            return
        children = [
            (name, child)
            for name, child in module._modules.items()
            if child is not None and name != "parametrizations"
        ]
        if not (leaves and children):
            found.append((path, module))
        for name, child in children:
            walk(f"{path}.{name}" if path else name, child)

    walk("", root)
    return found


def _closed_because(module: nn.Module) -> str | None:
    """Why nothing may be hooked in here; None where it may."""
    forward = module.__dict__.get("forward")
    if (
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(forward, "_torchdynamo_orig_callable")
    ):
        return "compiled"
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted"
    # torch takes another path through an inference encoder that carries hooks.
    if isinstance(module, nn.TransformerEncoderLayer) and not module.training:
        return "inference encoder"
    return None
