"""Statistics of the tensors in the frames that failed. Keeps none of them, reads no device."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tuimon.model.batches import TensorSummary
from tuimon.model.crash import MAX_TENSORS
from tuimon.train.frames import failing, in_torch, names_in, resolve
from tuimon.train.launch.tracebacks import Entry
from tuimon.train.leaves import leaves_of
from tuimon.train.modes import apart
from tuimon.train.samples.summary import summarise

MAX_ELEMENTS = 1 << 18  # of one tensor
_MAX_LOCALS = 256  # of one frame: the globals of a notebook-like script may be many
_MAX_PARAMETERS = 4
_CALLS_MODULES = os.path.join("nn", "modules", "module.py")  # knows them as `args` only

_Named = tuple[str, torch.Tensor]


def look_at_operands(
    entries: Sequence[Entry], module: nn.Module | None, path: str, names: Mapping[int, str]
) -> tuple[list[TensorSummary], int]:
    """(Summaries of the tensors, how many more there were.)

    Args:
        entries: the innermost frame of the user's code and what it called, outermost first.
        module: the innermost watched module.
        path: its path.
        names: id of a watched parameter -> its name.
    """
    chosen: dict[int, _Named] = {}
    for name, tensor in _in_order(entries, module, path):
        known = chosen.get(id(tensor))
        if known is None:
            chosen[id(tensor)] = names.get(id(tensor), name), tensor
        elif id(tensor) in names:
            continue
        elif "(" not in known[0] and known[0] != name:
            # The user's name, and what the library calls it: "yb (target)".
            chosen[id(tensor)] = f"{known[0]} ({name})", tensor
    listed = list(chosen.values())
    chosen.clear()
    with apart():
        listed.sort(key=lambda named: named[1].dim() == 0)  # single numbers tell least
        found = [
            summarise(name, tensor, MAX_ELEMENTS, samples=False)
            for name, tensor in listed[:MAX_TENSORS]
        ]
    return found, max(0, len(listed) - MAX_TENSORS)


def _in_order(entries: Sequence[Entry], module: nn.Module | None, path: str) -> Iterator[_Named]:
    """The nearest to the failure first: the failing line, what it called, the module, the rest."""
    first = entries[0]
    for node in names_in(failing(first)):
        value = resolve(node, first)
        yield from _tensors(ast.unparse(node), value)
    for entry in reversed(entries[1:]):
        if in_torch(entry.code.co_filename) != _CALLS_MODULES:
            yield from _locals(entry)
    if module is not None:
        yield from _parameters(module, path)
    yield from _locals(first)


def _locals(entry: Entry) -> Iterator[_Named]:
    variables: Mapping[str, Any] = entry.frame.f_locals
    for name, value in list(variables.items())[:_MAX_LOCALS]:
        if not name.startswith("__"):
            yield from _tensors(name, value)


def _tensors(name: str, value: Any) -> Iterator[_Named]:
    """A tensor, or the tensors in a container."""
    if issubclass(type(value), torch.Tensor):
        yield name, value
        return
    if issubclass(type(value), nn.Module):
        return
    found, _ = leaves_of((), {name: value}, MAX_TENSORS)
    yield from found


def _parameters(module: nn.Module, path: str) -> Iterator[_Named]:
    table = vars(module).get("_parameters")
    if isinstance(table, dict):
        prefix = f"{path}." if path else ""
        for name, param in list(table.items())[:_MAX_PARAMETERS]:
            if isinstance(param, torch.Tensor):
                yield f"{prefix}{name}", param
