"""Puts off half of what importing torch costs, in the processes that tests start.

The first optimizer of a process imports `torch._dynamo`, which takes about as long as torch itself,
only to be told that it does nothing while nothing is compiled. Here a module that says the same
stands in its place; whoever asks it for more gets the real one.

`TEST_HOST` is the name of the host that a process believes to run on.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


def disable(
    fn: Callable[..., Any], recursive: bool = True, *, wrapping: bool = True
) -> Callable[..., Any]:
    return fn


def graph_break(msg: str = "") -> None:
    """Nothing, as the real one does outside of what is compiled."""


class StandIn(ModuleType):
    """`torch._dynamo` until more of it is needed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what importing looks at
            raise AttributeError(name)
        return getattr(the_real_one(), name)


def the_real_one() -> ModuleType:
    """Import it, in the place of the stand-in."""
    if Finder in sys.meta_path:
        sys.meta_path.remove(Finder)
        sys.modules.pop(NAME, None)
    real = importlib.import_module(NAME)
    sys.modules["torch"]._dynamo = real  # type: ignore[attr-defined]
    return real


class Finder:
    """Answers for the package; a module in it is the real one's."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        if name == NAME:
            return ModuleSpec(name, Finder, is_package=True)
        if name.startswith(NAME + "."):
            the_real_one()
            importlib.import_module(name)
            return ModuleSpec(name, Finder)
        return None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        if spec.name != NAME:
            return sys.modules[spec.name]
        module = StandIn(NAME)
        vars(module).update(disable=disable, graph_break=graph_break)
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """There is nothing to execute."""


sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
if host := os.environ.get("TEST_HOST"):
    socket.gethostname = lambda: host
