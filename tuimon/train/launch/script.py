"""Runs a script or module in this process as `python` would have: argv, path, `__main__`, code.

Knows nothing of monitoring, and imports as little as it can: what is imported here is imported
before the script's first line.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import CodeType, FrameType, ModuleType
from typing import Any

from tuimon.errors import CannotStart
from tuimon.train.launch import tracebacks


@dataclass(frozen=True)
class Target:
    """What to run: a file, or with `is_module` a dotted name as after `python -m`."""

    name: str
    args: Sequence[str] = ()
    is_module: bool = False

    @property
    def argv(self) -> list[str]:
        """What follows the interpreter on the command line of a bare run."""
        return [*(["-m"] if self.is_module else []), self.name, *self.args]

    @property
    def title(self) -> str:
        """A short name: the file's stem, or the module."""
        return self.name if self.is_module else os.path.splitext(os.path.basename(self.name))[0]


class Script:
    """A target that can be started; making one runs none of its code.

    Raises:
        CannotStart: the target does not exist or is no Python source.
    """

    def __init__(self, target: Target, interpreter_options: Sequence[str]) -> None:
        self.target = target
        sys.orig_argv = [sys.executable, *interpreter_options, *target.argv]
        if target.is_module:
            _prepare_path(os.getcwd())
            _check_module(target.name)
        else:
            self._path = _existing_file(target.name)
            self._code = _compiled(self._path, _read(self._path))
            _prepare_path(os.path.dirname(os.path.realpath(self._path)))

    def run(self) -> None:
        """Run to the end; whatever the user's code raises comes out.

        Raises:
            CannotStart: the package was found, but not the module in it.
        """
        # Recursion that just fits under python must fit above our own frames as well.
        ours = _depth(sys._getframe()) + (1 if self.target.is_module else 2)
        sys.setrecursionlimit(sys.getrecursionlimit() + ours)
        if self.target.is_module:
            run_module(self.target)
        else:
            run_file(self.target, self._path, self._code)


def _depth(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def run_file(target: Target, path: str, code: CodeType) -> None:
    """Execute the code of a script in a new `__main__`."""
    sys.argv = [target.name, *target.args]
    namespace = _new_main(
        __file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path)
    )
    exec(code, namespace)
    forget_file(namespace)


def run_module(target: Target) -> None:
    """Execute a module as `__main__` by the machinery of `python -m`."""
    import runpy

    sys.argv = ["-m", *target.args]
    _new_main(__loader__=None)
    try:
        # Private, but it is what `python -m` itself calls, and its frames belong in a traceback.
        runpy._run_module_as_main(target.name)  # type: ignore[attr-defined]
    except SystemExit as ended:
        if _raised_by_runpy(ended):
            reason = str(ended.code).removeprefix(f"{sys.executable}: ")
            raise CannotStart(_no_module(reason)) from None
        raise


def forget_file(namespace: dict[str, Any]) -> None:
    """`python script.py` takes these two away once the script is over, before `atexit`."""
    namespace.pop("__file__", None)
    namespace.pop("__cached__", None)


def _raised_by_runpy(ended: SystemExit) -> bool:
    last = ended.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_name == "_run_module_as_main"


def _new_main(**values: Any) -> dict[str, Any]:
    module = ModuleType("__main__")
    vars(module).update({"__annotations__": {}, "__builtins__": builtins, **values})
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = module
    return vars(module)


# The launcher's own `__main__`: its functions need their globals until the process ends.
_kept: list[ModuleType] = []


def _prepare_path(first: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, first)


def _check_module(name: str) -> None:
    """Refuse what is certainly missing; only importing its package could tell the rest."""
    first = name.partition(".")[0]
    try:
        found = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise CannotStart(_no_module(f"No module named {first}"))


def _no_module(reason: str) -> str:
    return f"{reason}; give a module that `python -m` can run from {os.getcwd()}"


def _existing_file(name: str) -> str:
    path = os.path.join(os.getcwd(), name)
    if name == "-":
        raise CannotStart("a script from standard input cannot be watched; save it in a file")
    if os.path.isdir(path):
        raise CannotStart(f"{name} is a folder; give the script in it")
    if not os.path.exists(path):
        raise CannotStart(f"{name} does not exist; check the path ({path})")
    return path


def _read(path: str) -> bytes:
    try:
        with io.open_code(path) as file:
            source: bytes = file.read()
    except OSError as error:
        raise CannotStart(
            f"{path} cannot be read ({error.strerror}); check who may read it"
        ) from None
    if b"\0" in source:
        raise CannotStart(f"{path} is not a Python script but a binary file; give the source")
    return source


def _compiled(path: str, source: bytes) -> CodeType:
    """The script's code, with the warnings that compiling it gives, each once.

    A script that does not compile is left to the interpreter, which says it in its own words.
    """
    try:
        # `compile` lets wrong bytes in comments pass; the interpreter does not.
        importlib.util.decode_source(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", dont_inherit=True)
        return compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        os.execv(sys.executable, sys.orig_argv)


for _starts in (run_file, run_module):
    tracebacks.starts_the_script(_starts.__code__)
