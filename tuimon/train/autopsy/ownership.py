"""Keeps a replay from writing to anything but what it has made itself. Draws no random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tuimon.train.autopsy.kinds import kind_of, operands
from tuimon.train.autopsy.memory import Alive, storage_key
from tuimon.train.autopsy.names import flat_tensors
from tuimon.train.taps.compiler import leave_alone


class Refused(Exception):
    """An operator would have changed something, or has an outcome of its own each time."""


class Ownership(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that lets through what changes nothing of the script's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own: dict[int, Alive] = {}
        self._marked: dict[int, Alive] = {}

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of a tensor was made by the replay."""
        key = storage_key(tensor)
        alive = None if key is None else self._own.get(key)
        return alive is not None and bool(alive)

    def take(self, tensor: torch.Tensor) -> None:
        """Let the memory of a tensor count as made by the replay."""
        key = storage_key(tensor)
        if key is not None:
            self._own[key] = Alive(tensor)

    def mark(self, tensor: torch.Tensor) -> None:
        """Remember what is computed from a tensor."""
        key = storage_key(tensor)
        if key is not None:
            self._marked[key] = Alive(tensor)

    def is_marked(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor follows from one that was marked."""
        key = storage_key(tensor) if self._marked else None
        alive = None if key is None else self._marked.get(key)
        return alive is not None and bool(alive)

    def _dispatch(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        kind = kind_of(func)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Refused(f"{kind.name} draws random numbers")
        given = operands(kind, args, kwargs)
        if not all(map(self.owns, given.written)) or _has_statistics(kind.arguments, args):
            raise Refused(f"{kind.name} would write to what belongs to the script")
        result = func(*args, **kwargs)
        if not kind.is_view and not kind.writes:
            known = {storage_key(tensor) for tensor in given.read}
            for tensor in flat_tensors(result):
                key = storage_key(tensor)
                if key is not None and key not in known:
                    self._own[key] = Alive(tensor)
        if not kind.is_view and any(map(self.is_marked, given.read)):
            for tensor in given.written if kind.writes else flat_tensors(result):
                self.mark(tensor)
        return result


# As for the tracer: torch's own wrapper would load the compiler.
Ownership.__torch_dispatch__ = Ownership._dispatch  # type: ignore[method-assign,assignment]
leave_alone(Ownership._dispatch.__code__, callees=True)


def _has_statistics(names: Sequence[str], args: Sequence[Any]) -> bool:
    """Whether running statistics are among the arguments: they are written without a word."""
    return any(
        name in ("running_mean", "running_var") and value is not None
        for name, value in zip(names, args, strict=False)
    )
