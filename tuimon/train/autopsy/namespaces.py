"""Class attributes and globals of the script, which its modules may count in."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from tuimon.train.autopsy import foreign, putback
from tuimon.train.autopsy.putback import CannotKeep

_LARGE = (types.ModuleType, torch.optim.Optimizer, nn.Module)


class Namespaces:
    """Collects classes and globals while the modules are walked through, and visits them after.

    Attributes:
        globals: the globals that were visited; what they hold may be exchanged.
        all_seen: there was room for everything, and all of it could be asked.

    Args:
        visit: notes what these values reach; raises `CannotKeep` when that is too much.
        undo: where it is noted what puts things back.
    """

    def __init__(self, visit: Callable[[Iterable[Any]], None], undo: list[putback.Undo]) -> None:
        self.globals: list[dict[str, Any]] = []
        self.all_seen = True
        self._visit = visit
        self._undo = undo
        self._classes: dict[type, None] = {}
        self._known: set[type] = set()
        self._waiting: dict[int, dict[str, Any]] = {}

    def meet_class(self, kind: type) -> None:
        """It was met, or an instance of it."""
        self._classes.setdefault(kind)

    def meet_globals(self, values: dict[str, Any]) -> None:
        """A function with these globals was met."""
        self._waiting.setdefault(id(values), values)

    def visit(self, kinds: Iterable[type]) -> None:
        """Look after the classes of the modules, and everything of the script's that was met.

        Raises:
            CannotKeep: what classes hold is too much.
        """
        for kind in kinds:
            self._visit_class(kind)
        self._visit_classes()
        known: set[int] = set()
        while new := [values for key, values in self._waiting.items() if key not in known]:
            for values in new:
                known.add(id(values))
                saved = dict(values)
                self.globals.append(values)
                self._undo.append(functools.partial(putback.variables, values, saved))
                if not self._visit_values(saved):
                    return
            self._visit_classes()

    def _visit_classes(self) -> None:
        while new := [kind for kind in self._classes if kind not in self._known]:
            for kind in new:
                self._known.add(kind)
                if not foreign.comes_installed(kind):
                    self._visit_class(kind)

    def _visit_class(self, kind: type) -> None:
        for base in kind.__mro__:
            self._known.add(base)
            if foreign.is_foreign(base) or base.__module__.partition(".")[0] == "torch":
                continue
            for name, value in list(vars(base).items()):
                if not name.startswith("__"):
                    self._undo.append(functools.partial(putback.class_attribute, base, name, value))
                function = (
                    value.__func__ if isinstance(value, staticmethod | classmethod) else value
                )
                if type(function) not in foreign.SCALARS and not isinstance(function, property):
                    self._visit([function])
            source = sys.modules.get(base.__module__)
            if source is not None and not foreign.is_installed(vars(source)):
                self.meet_globals(vars(source))

    def _visit_values(self, saved: dict[str, Any]) -> bool:
        """Whether there is room to look at more."""
        for each in saved.values():
            if issubclass(type(each), _LARGE):
                continue
            try:
                self._visit([each])
            except CannotKeep:
                self.all_seen = False
                return False
            except Exception:  # it cannot be asked; the others can
                self.all_seen = False
        return True
