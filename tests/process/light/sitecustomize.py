"""Puts off half of what importing torch costs, in the processes that tests start.

The first optimizer of a process imports `torch._dynamo`, which takes about as long as torch itself,
only to be told that it does nothing while nothing is compiled. Here a module that says the same
stands in its place; whoever asks it for more gets the real one. DistributedDataParallel asks it
for a mode of compiling as well, and sharded parameters need its settings, but nothing else of it.

`TEST_HOST` is the name of the host that a process believes to run on.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
CONFIG = NAME + ".config"


def disable(
    fn: Callable[..., Any],
    recursive: bool = True,
    *,
    reason: str | None = None,
    wrapping: bool = True,
) -> Callable[..., Any]:
    return fn


def graph_break(msg: str = "") -> None:
    """Nothing, as the real one does outside of what is compiled."""


def set_stance(*_: object, **__: object) -> AbstractContextManager[None]:
    """Nothing is compiled that could be run otherwise."""
    return nullcontext()


class Utils:
    """`torch._dynamo.utils` until more of it is needed."""

    @staticmethod
    def get_optimize_ddp_mode() -> str:
        return "ddp_optimizer"

    def __getattr__(self, name: str) -> Any:
        return getattr(the_real_one().utils, name)


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
        if name == CONFIG:
            torch = find_spec("torch")
            assert torch is not None and torch.origin is not None
            return spec_from_file_location(name, Path(torch.origin).parent / "_dynamo/config.py")
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
        vars(module).update(
            disable=disable, graph_break=graph_break, set_stance=set_stance, utils=Utils()
        )
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """There is nothing to execute."""


sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
if host := os.environ.get("TEST_HOST"):
    socket.gethostname = lambda: host
