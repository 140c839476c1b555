"""Runs an optimizer's step again on copies and says which operation made a parameter non-finite.

The live optimizer, its parameters, gradients and state are read and never written.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tuimon.model.autopsy import NOT_REPRODUCED, OPTIMIZER, UNKNOWN
from tuimon.model.text import plain
from tuimon.train.autopsy import looks
from tuimon.train.autopsy.examination import Examination
from tuimon.train.autopsy.names import Named, Names
from tuimon.train.autopsy.origins import Origins
from tuimon.train.autopsy.restore import CannotKeep
from tuimon.train.autopsy.sandbox import sandbox
from tuimon.train.autopsy.sites import Place
from tuimon.train.autopsy.slicing import Target, conclude
from tuimon.train.autopsy.surroundings import surroundings
from tuimon.train.autopsy.tracer import Limits, Stopped, Tracer
from tuimon.train.signals import is_from_handler

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
_REVIVED = (
    "{count} parameters were not finite any more: their copies began with 0 in those places,"
    " since what they were before the step is not kept"
)
_FUSED = "the fused kernel was replaced by the same arithmetic, operation by operation"


class CannotCopy(Exception):
    """Something that the optimizer holds has no copy, so that a step could change the real one."""


def trace_optimizer(
    optimizer: torch.optim.Optimizer,
    *,
    names: Mapping[int, str],
    called_from: Place | None = None,
    before: Mapping[int, torch.Tensor] | None = None,
    only: Sequence[torch.Tensor] | None = None,
    alter: Callable[[Any], None] | None = None,
    limits: Limits | None = None,
) -> Examination:
    """Trace one step of an optimizer on copies of everything it touches.

    Args:
        optimizer: read only.
        names: id of a parameter -> its name.
        called_from: the user's line that calls `step`.
        before: id of a parameter -> its value before the step, where that is kept.
        only: the parameters to trace; all of them when left out.
        alter: changes the copy of the optimizer before its step.
        limits: when to give up.
    """
    found = Examination("", reached="optimizer")
    limits = limits or Limits()
    began_s = limits.clock()
    try:
        with sandbox([], also=[type(optimizer)], makes_updates=True):
            with looks.apart():
                double = _Double(optimizer, names, before or {}, only)
                if alter is not None:
                    alter(double.optimizer)
            found.notes += double.notes
            _trace(double, found, called_from, limits)
    except Stopped as stopped:
        found.stopped = True
        found.notes.append(str(stopped))
    except (CannotCopy, CannotKeep) as reason:
        found.notes.append(f"the optimizer was not run again: {reason}")
    except (Exception, SystemExit) as error:
        if is_from_handler(error):
            raise
        found.verdict = UNKNOWN
        text = plain(f"{type(error).__name__}: {error}", 200)
        found.notes.append(f"the optimizer's step failed when it was run again: {text}")
    found.duration_s = limits.clock() - began_s
    return found


def _trace(double: _Double, found: Examination, called_from: Place | None, limits: Limits) -> None:
    names = Names((), double.named())
    origins = Origins(names, _step.__code__, called_from, phase=OPTIMIZER)
    tracer = Tracer(names, limits, origins)
    try:
        with surroundings([]), tracer:
            _step(double.step)
    finally:
        found.ops = tracer.count
    with looks.apart():
        bad = [
            Target(name, *tracer.trace(param))
            for name, param in double.params.items()
            if looks.is_bad(param)
        ]
    if not bad:
        found.verdict = NOT_REPRODUCED
        return
    found.adopt(conclude(tracer.ops, tracer.leaves, bad, ()))
    found.bad_outputs = [target.name for target in bad]
    if found.first is not None:
        found.first = double.owned(found.first, bad[0].name)
        found.path = [double.owned(site, bad[0].name) for site in found.path]


def _step(step: Callable[[], Any]) -> None:
    """The frame above which nothing belongs to the re-run."""
    step()


class _Double:
    """A copy of an optimizer that shares no memory with it.

    Attributes:
        params: the copies of its parameters by name.
        optimizer: the copy itself.
        notes: where the copy differs.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[int, str],
        before: Mapping[int, torch.Tensor],
        only: Sequence[torch.Tensor] | None,
    ) -> None:
        self.params: dict[str, torch.Tensor] = {}
        self.notes: list[str] = []
        self._names = names
        self._before = before
        self._revived = 0
        self._memo: dict[int, Any] = {}
        chosen = None if only is None else {id(param) for param in only}
        live = [param for group in optimizer.param_groups for param in group["params"]]
        for param in live:
            self._copy_param(param)
        self.optimizer = self._clone = _without_state(optimizer)
        self._clone.param_groups = [
            self._copy_group(group, chosen) for group in optimizer.param_groups
        ]
        self._clone.state = type(optimizer.state)(optimizer.state.default_factory)
        for param, state in optimizer.state.items():
            if chosen is None or id(param) in chosen:
                self._clone.state[self._memo.get(id(param), param)] = self._copied(state, "state")
        for name, value in vars(optimizer).items():
            if name not in vars(self._clone) and name != "step":
                setattr(self._clone, name, self._copied(value, name))
        if self._revived:
            self.notes.append(_REVIVED.format(count=self._revived))

    def _copy_param(self, param: torch.Tensor) -> None:
        if id(param) in self._memo:
            return
        value = self._before.get(id(param), param).detach().clone()
        if id(param) not in self._before and looks.is_bad(value):
            self._revived += 1
            value = torch.where(torch.isfinite(value), value, torch.zeros_like(value))
        twin = torch.nn.Parameter(value, param.requires_grad)
        if param.grad is not None:
            twin.grad = param.grad.detach().clone()
        self._memo[id(param)] = twin
        index = len(self.params)
        self.params[self._names.get(id(param), f"optimizer0.{index}")] = twin

    def _copy_group(self, group: dict[str, Any], chosen: set[int] | None) -> dict[str, Any]:
        params = [p for p in group["params"] if chosen is None or id(p) in chosen]
        rest = {key: value for key, value in group.items() if key != "params"}
        twin: dict[str, Any] = self._copied(rest, "param_groups")
        twin["params"] = [self._memo[id(param)] for param in params]
        if twin.get("fused"):
            twin["fused"] = False
            self.notes.append(_FUSED)
        if "foreach" in twin:
            twin["foreach"] = False
        return twin

    def _copied(self, value: Any, what: str) -> Any:
        try:
            return copy.deepcopy(value, self._memo)
        except Exception as error:
            raise CannotCopy(f"its {what} cannot be copied ({type(error).__name__})") from error

    def named(self) -> Iterator[Named]:
        """Everything that the copy reads, by name."""
        for name, param in self.params.items():
            yield Named("parameter", name, param)
            if param.grad is not None:
                yield Named("gradient", f"gradient of {name}", param.grad)
            state = self._clone.state.get(param, {})
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    yield Named("optimizer-state", f"{key} of {name}", value)

    def step(self) -> None:
        """The step itself, without the hooks that stand round it."""
        function = type(self._clone).step
        if getattr(function, "hooked", False):
            function = inspect.unwrap(function, stop=lambda f: not getattr(f, "hooked", False))
        if not _takes_nothing(function):
            raise CannotCopy("its step needs a closure")
        with torch.enable_grad():
            function(self._clone)

    def owned(self, site: Any, fallback: str) -> Any:
        """An operation with the module whose parameter it updates."""
        import msgspec

        notes = [*site.inputs, *site.outputs]
        name = next((n for note in notes if (n := self._owner(note.name))), fallback)
        return msgspec.structs.replace(site, module=name.rpartition(".")[0], in_model=False)

    def _owner(self, name: str) -> str:
        name = name.rpartition(" of ")[2]
        return name if name in self.params else ""


def _without_state(optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer of the same class with nothing in it, not even hooks."""
    clone = object.__new__(type(optimizer))
    for name in _HOOKS:
        setattr(clone, name, OrderedDict())
    return clone


def _takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether a step can be called without a closure."""
    try:
        parameters = [*inspect.signature(function).parameters.values()][1:]
    except (TypeError, ValueError):
        return True
    return all(
        p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters
    )
