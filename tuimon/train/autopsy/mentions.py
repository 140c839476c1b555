"""Which globals a forward could reach by name, read from its code; nothing is run."""

from __future__ import annotations

import types
from collections.abc import Iterator

from tuimon.train.autopsy.foreign import is_foreign, is_installed


def names_in(code: types.CodeType) -> set[str]:
    """Names of globals and attributes in a function and in those that it makes, also as text."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)
    return found


def mentioned(function: types.FunctionType) -> Iterator[object]:
    """Values of the globals that a function of the script's names, also in its other modules."""
    values = function.__globals__
    if is_installed(values):
        return
    names = names_in(function.__code__)
    for name in names & values.keys():
        value = values[name]
        if not isinstance(value, types.ModuleType):
            yield value
        elif not is_installed(vars(value)):
            yield from (vars(value)[each] for each in names & vars(value).keys())


def forward_of(kind: type) -> Iterator[types.FunctionType]:
    """The forward of a class of modules, and the methods that it could call, by their names."""
    own: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if not is_foreign(base):
            own.update(vars(base))
    waiting, known = ["forward"], {"forward"}
    while waiting:
        function = _function(own.get(waiting.pop()))
        if function is None:
            continue
        yield function
        new = (names_in(function.__code__) & own.keys()) - known
        known |= new
        waiting.extend(new)


def _function(value: object) -> types.FunctionType | None:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__wrapped__", value) if callable(value) else value
    return value if isinstance(value, types.FunctionType) else None
