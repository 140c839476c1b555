"""What the watched models gave in the step that is examined, for code that asks them once more.

Holds tensors of a re-run, so it lives no longer than the examination.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from tuimon.train.autopsy.poison import is_same
from tuimon.train.autopsy.shadow import UNKNOWN
from tuimon.train.layers import unwrap


class Answer(NamedTuple):
    """One call of a watched model, and what it gave."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


class Answers:
    """The calls of one step."""

    def __init__(self, known: Sequence[Answer] = ()) -> None:
        self._known = list(known)

    def to(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a model gave when it was called so; unknown rather than the answer of another call.

        Call it inside `looks.apart`.
        """
        root = unwrap(module)
        calls = [each for each in self._known if unwrap(each.module) is root]
        given = tree_leaves((args, dict(kwargs)))
        if len(calls) == 1 and any(each is UNKNOWN for each in given):
            return calls[0].output
        same = [each for each in calls if _is_same(given, each)]
        return same[-1].output if same else UNKNOWN


def _is_same(given: list[Any], call: Answer) -> bool:
    other = tree_leaves((call.args, dict(call.kwargs)))
    if len(given) != len(other):
        return False
    for one, two in zip(given, other, strict=True):
        if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
            if one is not two and not _is_equal(one, two):
                return False
        elif type(one) is not type(two):
            return False
    return True


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype is not other.dtype or one.device != other.device:
        return False
    return is_same(one, other) or torch.equal(one, other)


def cut(output: Any) -> Any:
    """The same output in tensors without a graph; whatever else is in it stays as it is.

    Copies objects of the script's, so call it where the script's code may run.
    """
    return changed(output, torch.Tensor.detach)


def changed(output: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same output with other tensors in it."""
    if hasattr(type(output), "__dataclass_fields__") and not isinstance(output, dict):
        twin = copy.copy(output)
        for name, value in getattr(output, "__dict__", {}).items():
            object.__setattr__(twin, name, changed(value, change))
        return twin
    return tree_map(lambda each: change(each) if isinstance(each, torch.Tensor) else each, output)
