"""Finds the tensors in what a module was called with, without running any code of the user's.

Only the storage of plain containers is read: no property, no `__getattr__`, no iterator of a
subclass. The search is bounded in places and in depth.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

MAX_PLACES = 256
MAX_DEPTH = 6

Leaf = tuple[str, torch.Tensor]


def leaves_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int
) -> tuple[list[Leaf], int]:
    """(The tensors of a call by name, at most `limit`; places and tensors that were left out)."""
    if not kwargs and len(args) <= len(NAMES) and PLAIN.issuperset(map(type, args)):
        return list(zip(NAMES, args, strict=False)), 0
    leaves = Leaves(args, kwargs, limit)
    return leaves.found, leaves.left_out


# A call with tensors alone, and no more of them than there are names, needs no search.
NAMES = tuple(map(str, range(8)))
PLAIN = frozenset((torch.Tensor,))


class Leaves:
    """The tensors of one call.

    Attributes:
        found: (name, tensor), at most `limit`, in the order of the call.
        left_out: tensors beyond the limit, and places that were too many or too deep to visit.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int) -> None:
        self.found: list[Leaf] = []
        self.left_out = 0
        self._limit = limit
        self._places = 0
        self._open: set[int] = set()  # containers on the way down: one may hold itself
        for index, value in enumerate(args):
            self._visit(str(index), value, 0)
        for name, value in kwargs.items():
            self._visit(str(name), value, 0)

    def _visit(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            if len(self.found) < self._limit:
                self.found.append((name, value))
            else:
                self.left_out += 1
            return
        if kind in _SCALARS:
            return
        members = _members(kind, value)
        if members is None or id(value) in self._open:
            return
        if depth >= MAX_DEPTH:
            self.left_out += 1
            return
        self._open.add(id(value))
        for key, member in members:
            self._places += 1
            if self._places > MAX_PLACES:
                self.left_out += 1
                break
            self._visit(f"{name}.{key}", member, depth + 1)
        self._open.discard(id(value))


_SCALARS = frozenset((int, float, bool, str, bytes, type(None), complex))


def _members(kind: type, value: Any) -> Iterable[tuple[Any, Any]] | None:
    """What a container holds; None for anything that is none.

    Keys stand in a name only if they are text or numbers: anything else has code of its own.
    """
    if issubclass(kind, dict):
        return ((_key(key), member) for key, member in dict.items(value))
    if issubclass(kind, tuple):
        return enumerate(tuple.__iter__(value))
    if issubclass(kind, list):
        return enumerate(list.__iter__(value))
    if issubclass(kind, collections.UserDict):
        data = object.__getattribute__(value, "__dict__").get("data")
        return _members(dict, data) if issubclass(type(data), dict) else None
    if issubclass(kind, types.SimpleNamespace):
        return [*object.__getattribute__(value, "__dict__").items()]
    if "__dataclass_fields__" in _inherited(kind):
        return _fields(kind, value)
    return None


def _key(key: Any) -> str:
    return str(key)[:60] if type(key) in (str, int) else "?"


def _inherited(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name in base.__dict__ if name.startswith("__data")}


def _fields(kind: type, value: Any) -> Iterator[tuple[str, Any]]:
    """The stored fields of a dataclass; one that was not set yet, or is computed, has none."""
    stored = object.__getattribute__(value, "__dict__") if kind.__dictoffset__ else {}
    names = next(b.__dict__ for b in kind.__mro__ if "__dataclass_fields__" in b.__dict__)
    for name in names["__dataclass_fields__"]:
        if name in stored:
            yield name, stored[name]
            continue
        slot = next((b.__dict__[name] for b in kind.__mro__ if name in b.__dict__), None)
        if isinstance(slot, types.MemberDescriptorType):
            try:
                yield name, slot.__get__(value, kind)
            except AttributeError:
                continue
