"""Names and values of a replay: a frame beside the living one, which is read and never written."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Final

from tuimon.train.autopsy.bytecode import CannotReplay, Code, read

_OPTIMIZED = 1  # of `co_flags`: names of the function are fast locals
_LOOKS_AT_LOCALS = frozenset(("locals", "vars", "eval", "exec", "dir"))


class _Mark:
    """A value that is no value of the script's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


UNKNOWN: Final[Any] = _Mark("unknown")
NULL: Final[Any] = _Mark("null")


class Each:
    """An iterator of the replay's own."""

    def __init__(self, values: list[Any]) -> None:
        self.values: Iterator[Any] = iter(values)


class Scope:
    """Where a replayed function finds names.

    Attributes:
        code: its bytecode, read.
        names: what the replay has stored.
        globals: what it has stored to global names.
        module: the scope of the module's body, where that is what is replayed.
        live: the names of the living frame.
        last: index of the instruction that the living frame executes; None for a function that
            has returned.
        stack: what the replay has on its stack in the end.
    """

    def __init__(
        self,
        code: CodeType,
        namespace: Mapping[str, Any],
        outer: Mapping[str, Any],
        names: dict[str, Any] | None = None,
    ) -> None:
        self.raw = code
        self.code: Code = read(code)
        self.names: dict[str, Any] = names if names is not None else {}
        self.namespace = namespace
        self.outer = outer
        self.globals: dict[str, Any] = {}
        self.module: Scope | None = None
        self.live: Mapping[str, Any] | None = None
        self.last: int | None = None
        self.start = 0
        self.stack: list[Any] = []

    def load(self, name: str) -> Any:
        """A name of the function itself, or one that it has from around it."""
        if name in self.names:
            return self.names[name]
        if self.live is not None:
            return self._live(name, self.start)
        return self.outer.get(name, UNKNOWN)

    def load_name(self, name: str) -> Any:
        """A name of a module's or class's body."""
        if name in self.names or (self.live is not None and name in self.live):
            return self.load(name)
        return self.load_global(name)

    def load_global(self, name: str) -> Any:
        """A global or built-in name."""
        if name in self.globals:
            return self.globals[name]
        if self.live is not None and self.live is self.namespace:
            if name in self.names or name in self.live:
                return self.load(name)
        elif self.module is not None and self.module.namespace is self.namespace:
            return self.module.load_global(name)
        elif name in self.namespace:
            return self.namespace[name]
        known = self.namespace.get("__builtins__", builtins)
        found = known if isinstance(known, dict) else vars(known)
        return found.get(name, UNKNOWN)

    def store(self, name: str, value: Any, index: int) -> None:
        """A store by the instruction at `index`; what is unknown may still be there to be read."""
        self.names[name] = self._live(name, index) if value is UNKNOWN else value

    def forget(self, names: set[str], index: int) -> None:
        """Nobody knows what was stored to these names until `index`, unless they still hold it."""
        for name in names:
            self.names[name] = self._live(name, index)

    def _live(self, name: str, index: int) -> Any:
        if self.live is None or self.last is None or name not in self.live:
            return UNKNOWN
        if not self.code.is_last_store(name, index, self.last):
            return UNKNOWN
        return self.live[name]


class Cells(Mapping[str, Any]):
    """What a function has from around it."""

    def __init__(self, code: CodeType, closure: tuple[Any, ...] | None) -> None:
        self._cells = dict(zip(code.co_freevars, closure or (), strict=False))

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # not filled yet
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


class Around(Mapping[str, Any]):
    """What a function that the replay has made has from the scope that made it."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __getitem__(self, name: str) -> Any:
        value = self._scope.load(name)
        if value is UNKNOWN:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._scope.names)

    def __len__(self) -> int:
        return len(self._scope.names)


class Made:
    """A function that the replay has made."""

    def __init__(
        self, code: CodeType, scope: Scope, defaults: tuple[Any, ...], kwdefaults: dict[str, Any]
    ) -> None:
        self.code = code
        self.scope = scope
        self.defaults = defaults
        self.kwdefaults = kwdefaults


def locals_of(frame: FrameType) -> dict[str, Any] | Mapping[str, Any]:
    """The names of a living frame, which keeps nothing because they were read.

    Raises:
        CannotReplay: they cannot be read without a trace.
    """
    code = frame.f_code
    if not code.co_flags & _OPTIMIZED:
        return frame.f_locals  # the namespace itself
    if not _LOOKS_AT_LOCALS.isdisjoint(code.co_names):
        raise CannotReplay("a function of the script looks at its own locals")
    found = dict(frame.f_locals)
    if sys.version_info < (3, 13):
        frame.f_locals.clear()  # a copy that the frame would keep, and with it what it holds
    return found
