"""Which operation of the code around the models made a gradient bad: frames followed with a graph.

As in `frames` nothing of the script's is called or changed; the backward runs over the graph of
the replay alone, from its losses to what the models gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from tuimon.model.autopsy import FORWARD, OPERATION
from tuimon.train.autopsy import bytecode, looks, upstream
from tuimon.train.autopsy.answers import Answer, Answers, changed
from tuimon.train.autopsy.examination import Examination
from tuimon.train.autopsy.frames import (
    ENGINE,
    About,
    Search,
    frames_of_script,
    is_watched_by_script,
)
from tuimon.train.autopsy.interpreter import Interpreter
from tuimon.train.autopsy.names import Named, Roots
from tuimon.train.autopsy.nodes import is_leaf
from tuimon.train.autopsy.rerun import gradients
from tuimon.train.autopsy.shadow import Scope
from tuimon.train.autopsy.slicing import Target, conclude
from tuimon.train.autopsy.tracer import Limits, Stopped, Tracer

_hooks_of_script: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
MAX_LOSSES = 8
MAX_NODES = 5_000  # of the graph of a loss


def retrace_backward(
    answers: Sequence[Answer],
    *,
    roots: Roots,
    scale: float | None = None,
    also: Iterable[Named] = (),
    limits: Limits | None = None,
) -> Examination:
    """Find the operation whose derivative is bad; call it at the gate of an update.

    Args:
        answers: what the models gave.
        roots: (prefix of its names, module) of all watched models.
        scale: what the losses were multiplied by.
        also: tensors to be called by name.
        limits: when to give up.
    """
    limits = limits or Limits()
    found = Examination(ENGINE, reached=FORWARD)
    if not bytecode.is_readable() or is_watched_by_script() or _hooks_of_script(True) is not None:
        return found
    about = About(roots, list(also), [], Answers(answers))
    search = _Backward(about, limits, found, 1.0 if scale is None else scale)
    frames = list(frames_of_script())
    try:
        any(search.look_in(frame) for frame in frames)
    except Stopped:
        found.stopped = True
    finally:
        frames.clear()
    return found


def _call(fn: Callable[[], bool]) -> bool:
    """The frame above which nothing belongs to the replay."""
    return fn()


class _Backward(Search):
    """Follows frames with a graph, and runs backward over it."""

    has_graph = True
    entry = _call.__code__

    def __init__(self, about: About, limits: Limits, found: Examination, scale: float) -> None:
        super().__init__((), about, limits, found)
        self._scale = scale
        self._given: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # leaves of the graph
        self._began = torch._C._autograd._get_sequence_nr()

    def _output(self, output: Any) -> Any:
        return changed(output, self._as_leaf)

    def _as_leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
            return tensor
        known = self._given.get(id(tensor))
        if known is None:
            known = tensor, tensor.detach().requires_grad_()
            self._given[id(tensor)] = known
        with torch.enable_grad():
            return known[1].view_as(known[1])  # may be written to, as no leaf may

    def _end(self, scope: Scope, replay: Interpreter, tracer: Tracer) -> bool:
        given = [each for each in scope.stack if type(each) is torch.Tensor and each.dim() == 0]
        losses = [each for each in (*replay.asked, *given) if self._is_own(each)][:MAX_LOSSES]
        return any(_call(partial(self._differentiate, loss, tracer)) for loss in losses)

    def _is_own(self, loss: torch.Tensor) -> bool:
        """Whether every node of a graph was made by the replay: no other is run."""
        todo = [loss.grad_fn]
        seen: set[Any] = set()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            if len(seen) >= MAX_NODES or (not is_leaf(node) and node._sequence_nr() < self._began):
                return False
            seen.add(node)
            todo += [below for below, _ in node.next_functions]
        return bool(seen)

    def _differentiate(self, loss: torch.Tensor, tracer: Tracer) -> bool:
        wanted = {f"output {at}": leaf for at, (_, leaf) in enumerate(self._given.values())}
        with looks.apart():
            is_bad = looks.is_bad(loss.detach())
            seed = torch.full_like(loss, self._scale)
        if is_bad:
            return self.judge(loss.detach(), tracer)
        if not wanted:
            return False
        with tracer:
            grads = gradients([(loss, seed)], [*wanted.values()], [loss.grad_fn])
        with looks.apart():
            bad = [
                Target(f"gradient of {name}", *tracer.trace(grad))
                for name, grad in zip(wanted, grads, strict=True)
                if grad is not None and looks.is_bad(grad)
            ]
        if not bad:
            return False
        verdict = conclude(tracer.ops, tracer.leaves, bad, ())
        if verdict.verdict != OPERATION or verdict.index is None:
            return False
        self.adopt(verdict)
        self._found.reached = "backward"
        site = tracer.ops[verdict.index].site
        self._found.upstream = upstream.above([loss.grad_fn], site)
        return True
