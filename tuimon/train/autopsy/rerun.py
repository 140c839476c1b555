"""Runs a step's forward and backward again and says what went wrong first.

Engine M has the model, what it was called with, and the gradient of its output; engine R has a
function that gives the loss. Hooks, modes and gradients are as before when these functions return;
random streams, buffers and everything else the user's code may change are their caller's to keep.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn

from tuimon.model.autopsy import NOT_REPRODUCED, UNKNOWN
from tuimon.model.text import plain
from tuimon.train.autopsy import looks, upstream
from tuimon.train.autopsy.answers import cut
from tuimon.train.autopsy.examination import Examination
from tuimon.train.autopsy.names import Named, Names, Roots, flat_tensors, named_arguments
from tuimon.train.autopsy.origins import Origins
from tuimon.train.autopsy.putback import CannotKeep
from tuimon.train.autopsy.sites import Place
from tuimon.train.autopsy.slicing import Target, Verdict, conclude
from tuimon.train.autopsy.surroundings import surroundings
from tuimon.train.autopsy.tracer import Limits, Stopped, Tracer
from tuimon.train.layers import unwrap

_REENTRANT = "CheckpointFunctionBackward"  # refuses to run for chosen inputs only
_ARRIVED_BAD = (
    "the gradient that came back from the loss was not finite already:"
    " what went wrong lies outside of the model"
)


class AutocastState(NamedTuple):
    """Autocast on one kind of device."""

    device_type: str
    enabled: bool
    dtype: torch.dtype
    cache: bool


def read_autocast() -> tuple[AutocastState, ...]:
    """Autocast as it is now, where it is on."""
    cache = torch.is_autocast_cache_enabled()
    return tuple(
        AutocastState(kind, True, torch.get_autocast_dtype(kind), cache)
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    )


def rerun_model(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    output_grads: Sequence[torch.Tensor | None] | None = None,
    roots: Roots | None = None,
    autocast: Sequence[AutocastState] = (),
    called_from: Place | None = None,
    loss_bad: bool | None = None,
    extra: Sequence[Named] = (),
    limits: Limits | None = None,
) -> Examination:
    """Engine M: the model again, then backward from the gradient of its output.

    Args:
        model: the root; wrappers that compile or replicate it are taken off.
        args, kwargs: what it was called with.
        output_grads: one for each tensor of `flat_tensors(output)`; None runs no backward.
        roots: (prefix of its names, module) of all models; this one alone when left out.
        autocast: as it was when the forward began.
        called_from: where the user called the model.
        loss_bad: whether the step's loss was not finite; None when that is not known.
        extra: more tensors to be called by name.
        limits: when to give up.
    """
    module = unwrap(model)
    run = _Run("M", roots or [("", model)], called_from, limits or Limits())
    run.name([*extra, *named_arguments(args, dict(kwargs or {}))])
    if module is not model:
        run.found.notes.append(
            f"the model was run again without its {type(model).__name__}, operation by operation"
        )

    def forward() -> Any:
        return module(*args, **(kwargs or {}))

    def seeds(outputs: list[torch.Tensor]) -> list[torch.Tensor | None] | None:
        if output_grads is None:
            return None
        if len(output_grads) != len(outputs):
            raise _Unlike(f"it gave {len(outputs)} tensors, the step {len(output_grads)}")
        return upstream.outermost(outputs, output_grads)

    return run.examine(forward, seeds, autocast, loss_bad)


def rerun_closure(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    roots: Roots,
    loss_scale: float | None = None,
    backward: bool = True,
    autocast: Sequence[AutocastState] = (),
    loss_bad: bool | None = None,
    extra: Sequence[Named] = (),
    limits: Limits | None = None,
) -> Examination:
    """Engine R: the function that gives the loss again, then backward from it.

    Args:
        fn, args, kwargs: gives the loss, or something that holds it first or as `loss`.
        roots: (prefix of its names, module) of all models.
        loss_scale: what the gradients were multiplied by.
        backward: whether to run one.
        autocast, loss_bad, extra, limits: as in `rerun_model`.
    """
    run = _Run("R", roots, None, limits or Limits())
    run.name([*extra, *named_arguments(args, dict(kwargs or {}))])

    def forward() -> Any:
        output = fn(*args, **(kwargs or {}))
        run.loss = loss_of(output)
        return output

    def seeds(outputs: list[torch.Tensor]) -> list[torch.Tensor | None] | None:
        if run.loss is None or not backward:
            return None
        seed = torch.full_like(run.loss, 1.0 if loss_scale is None else loss_scale)
        return [seed if tensor is run.loss else None for tensor in outputs]

    return run.examine(forward, seeds, autocast, loss_bad)


def loss_of(output: Any) -> torch.Tensor | None:
    """The loss in what a function gave: itself, its `loss`, or the first scalar in the graph."""
    named = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    candidates = [output, named, *flat_tensors(output)]
    for candidate in candidates:
        if isinstance(candidate, torch.Tensor) and candidate.numel() == 1:
            return candidate
    return None


class _Unlike(Exception):
    """The re-run is not like the step."""


_Seeds = Callable[[list[torch.Tensor]], list[torch.Tensor | None] | None]


class _Run:
    """One re-run and what it found.

    Attributes:
        loss: of engine R.
    """

    def __init__(
        self, engine: str, roots: Roots, called_from: Place | None, limits: Limits
    ) -> None:
        self.found = Examination(engine)
        self.loss: torch.Tensor | None = None
        self._roots = roots
        self._called_from = called_from
        self._limits = limits
        self._began_s = limits.clock()

    def name(self, also: list[Named]) -> None:
        self._names = Names(self._roots, also)
        anywhere = "" if self.found.engine == "M" else None
        entry = _call.__code__
        origins = Origins(self._names, entry, self._called_from, anywhere=anywhere)
        self._tracer = Tracer(self._names, self._limits, origins)

    def examine(
        self,
        forward: Callable[[], Any],
        seeds: _Seeds,
        autocast: Sequence[AutocastState],
        loss_bad: bool | None,
    ) -> Examination:
        """Run and judge; only what ends the program goes through."""
        found = self.found
        try:
            with surroundings([*self._names.parameters.values()]):
                self._judge(self._run_forward(forward, autocast), seeds, loss_bad)
        except Stopped:
            found.stopped = True
            found.notes.append(self._tracer.stopped)
        except _Unlike as unlike:
            found.verdict = NOT_REPRODUCED
            found.notes.append(f"the re-run is not like the step: {unlike}")
        except CannotKeep as reason:
            found.verdict = UNKNOWN
            found.notes.append(f"the re-run was given up in its {found.reached}: {reason}")
        except (Exception, SystemExit) as error:  # it would have ended there, the script has not
            found.verdict = UNKNOWN
            text = plain(f"{type(error).__name__}: {error}", 200)
            found.notes.append(f"the re-run failed in its {found.reached}: {text}")
        finally:
            self._tell()
        return found

    def _run_forward(
        self, forward: Callable[[], Any], autocast: Sequence[AutocastState]
    ) -> list[torch.Tensor]:
        self.found.reached = "forward"
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for state in autocast:
                stack.enter_context(
                    torch.autocast(
                        state.device_type,
                        state.dtype,
                        enabled=state.enabled,
                        cache_enabled=state.cache,
                    )
                )
            stack.enter_context(self._names.following(self._tracer.is_bad_output))
            stack.enter_context(self._tracer)
            output = _call(forward)
        with looks.apart():
            self.found.returned = cut(output)
        return flat_tensors(output)

    def _judge(self, outputs: list[torch.Tensor], seeds: _Seeds, loss_bad: bool | None) -> None:
        found = self.found
        with looks.apart():
            found.outputs = [tensor.detach() for tensor in outputs]
            if self.loss is not None:
                found.loss = float(self.loss.detach())
            bad = self._targets(self._output_names(outputs))
        found.bad_outputs = [target.name for target in bad]
        forward = self._conclude(bad, bad)
        if loss_bad is not False and forward.verdict != UNKNOWN and not forward.meant:
            found.adopt(forward)
            return
        if loss_bad and found.engine == "M":
            found.loss_code = True
            found.notes.append("the outputs of the model are finite: the loss made it not finite")
            if forward.meant:
                found.constants = forward.constants
            return
        grads = seeds(outputs)
        if grads is not None and not self._arrived_bad(grads, forward):
            self._run_backward(outputs, grads)
            self._judge_backward(bad, outputs)
        if found.verdict == UNKNOWN and not found.loss_code:
            self._fall_back(forward, grads is not None)

    def _fall_back(self, forward: Verdict, complete: bool) -> None:
        """Nothing is bad in the backward, or none was run."""
        if forward.verdict != UNKNOWN and not forward.meant:
            self.found.adopt(forward)
        elif complete:
            self.found.verdict = NOT_REPRODUCED
        else:
            self.found.notes.append("the forward is finite, and no backward could be run again")

    def _output_names(self, outputs: list[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        return [
            ("loss" if tensor is self.loss else f"output[{index}]", tensor)
            for index, tensor in enumerate(outputs)
            if self.loss is None or tensor is self.loss
        ]

    def _targets(self, candidates: list[tuple[str, torch.Tensor]]) -> list[Target]:
        """Those that are not finite; call it inside `looks.apart`."""
        return [
            Target(name, *self._tracer.trace(tensor))
            for name, tensor in candidates
            if looks.is_bad(tensor)
        ]

    def _conclude(self, targets: list[Target], outputs: list[Target]) -> Verdict:
        if not targets:
            return Verdict()
        return conclude(self._tracer.ops, self._tracer.leaves, targets, outputs)

    def _arrived_bad(self, grads: list[torch.Tensor | None], forward: Verdict) -> bool:
        with looks.apart():
            arrived = any(grad is not None and looks.is_bad(grad) for grad in grads)
        if not arrived:
            return False
        if forward.verdict == UNKNOWN or forward.meant:
            self.found.loss_code = True
            self.found.notes.append(_ARRIVED_BAD)
        return True

    def _run_backward(self, outputs: list[torch.Tensor], grads: list[torch.Tensor | None]) -> None:
        found = self.found
        found.reached = "backward"
        pairs = [
            (tensor, grad)
            for tensor, grad in zip(outputs, grads, strict=True)
            if grad is not None and tensor.requires_grad
        ]
        wanted = {name: p for name, p in self._names.parameters.items() if p.requires_grad}
        if not pairs or not wanted:
            return
        nodes = [tensor.grad_fn for tensor, _ in pairs]
        with self._names.following(self._tracer.is_bad_output), self._tracer:
            given = _call(lambda: gradients(pairs, [*wanted.values()], nodes))
        for (name, param), grad in zip(wanted.items(), given, strict=True):
            grad = grad if grad is not None else param.grad
            if grad is not None:
                found.grads[name] = grad

    def _judge_backward(self, bad_outputs: list[Target], outputs: list[torch.Tensor]) -> None:
        found = self.found
        with looks.apart():
            named = [(f"gradient of {name}", grad) for name, grad in found.grads.items()]
            bad = self._targets(named)
        found.bad_grads = [target.name.removeprefix("gradient of ") for target in bad]
        verdict = self._conclude(bad, bad_outputs)
        if verdict.verdict == UNKNOWN:
            return
        found.adopt(verdict)
        if verdict.index is not None:
            nodes = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
            found.upstream = upstream.above(nodes, self._tracer.ops[verdict.index].site)

    def _tell(self) -> None:
        found, tracer = self.found, self._tracer
        found.ops = tracer.count
        backward = None
        if found.reached == "backward":
            backward = {
                op.site.module or ""
                for op in tracer.ops
                if op.site.phase == "backward" and op.site.module is not None
            }
        with contextlib.suppress(Exception), looks.apart():
            found.modules = self._names.states(backward)
        if tracer.hidden:
            found.notes.append(f"{tracer.hidden} results of a kind that cannot be looked at")
        found.duration_s = self._limits.clock() - self._began_s


def _call(fn: Callable[[], Any]) -> Any:
    """The frame above which nothing belongs to the re-run."""
    return fn()


def gradients(
    pairs: list[tuple[torch.Tensor, torch.Tensor]],
    params: list[torch.Tensor],
    nodes: list[Any],
) -> Sequence[torch.Tensor | None]:
    """Gradients of parameters without a trace in their `.grad`, where torch can do that.

    The engine is called without `torch.autograd.grad`, which loads symbolic algebra for seconds
    to compare the shapes of gradients that it is given.
    """
    tensors, grads = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    run = torch.autograd.Variable._execution_engine.run_backward
    # The graph is not given up: parts of it may belong to the script, and it ends with its tensors.
    if upstream.has_node(nodes, _REENTRANT):
        run(tensors, grads, True, False, (), allow_unreachable=True, accumulate_grad=True)
        return [param.grad for param in params]
    given: Sequence[torch.Tensor | None] = run(
        tensors, grads, True, False, tuple(params), allow_unreachable=True, accumulate_grad=False
    )
    return given
