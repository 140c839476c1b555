"""Reads the frames of a traceback: whose code it is, its module, and which operation was called.

Reads code objects, variables and source files; runs none of the user's code.
"""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
import textwrap
from collections.abc import Sequence
from itertools import islice
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tuimon.model.autopsy import BACKWARD, FORWARD, OPTIMIZER
from tuimon.model.crash import DATA
from tuimon.model.text import plain
from tuimon.train.launch.tracebacks import Entry

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple({_PATHS[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")})
_UPDATES = ("optim" + os.sep, os.path.join("amp", "grad_scaler.py"), "clip_grad.py")
_AUTOGRAD = {
    (os.path.join("autograd", "graph.py"), "_engine_run_backward"),
    (os.path.join("autograd", "__init__.py"), "backward"),
    (os.path.join("autograd", "__init__.py"), "grad"),
    ("_tensor.py", "backward"),
}
_OPERATORS: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.Pow: "pow",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
}
MAX_SOURCE = 200
_MAX_EXPRESSION = 4000  # characters; a longer one is not taken apart


def is_users(filename: str) -> bool:
    """Whether a file is neither torch, nor an installed package, nor Python's own."""
    return not filename.startswith(("<", *_LIBRARIES, _TORCH))


def in_torch(filename: str) -> str:
    """The path inside torch's folder; "" for any other file."""
    return filename.removeprefix(_TORCH) if filename.startswith(_TORCH) else ""


def shown_path(filename: str) -> str:
    """A path as a person would write it: below the working folder without that folder."""
    for folder in (os.getcwd(), os.path.dirname(_TORCH.rstrip(os.sep))):
        if filename.startswith(folder + os.sep):
            return filename.removeprefix(folder + os.sep)
    return filename


def source_line(filename: str, line: int, namespace: dict[str, Any] | None = None) -> str:
    """The text of a line, stripped and bounded; "" when there is none."""
    return plain(linecache.getline(filename, line, namespace).strip(), MAX_SOURCE)


def own_module(entry: Entry) -> nn.Module | None:
    """The module whose method runs in a frame."""
    code = entry.code
    if not code.co_argcount:
        return None
    owner = entry.frame.f_locals.get(code.co_varnames[0])
    return owner if issubclass(type(owner), nn.Module) else None


def phase_of(entries: Sequence[Entry]) -> str:
    """What was under way, by the innermost frame that tells; "" when none does."""
    paths = [in_torch(entry.code.co_filename) for entry in entries]
    if any(path.startswith(os.path.join("utils", "data")) for path in paths):
        return DATA
    for entry, path in zip(reversed(entries), reversed(paths), strict=True):
        if path.startswith(_UPDATES[0]) or path.endswith(_UPDATES[1:]):
            return OPTIMIZER
        if (path, entry.code.co_name) in _AUTOGRAD:
            return BACKWARD
        if path.startswith("nn" + os.sep) or own_module(entry) is not None:
            return FORWARD
    return ""


def failing(entry: Entry) -> ast.AST | None:
    """The expression or statement that a frame was at; None when its source cannot be read."""
    text = _failing_text(entry)
    if not text or len(text) > _MAX_EXPRESSION:
        return None
    for candidate in (f"({text})", textwrap.dedent(text)):
        try:
            body = ast.parse(candidate).body
        except (SyntaxError, ValueError, RecursionError):
            continue
        if len(body) == 1:
            return body[0].value if isinstance(body[0], ast.Expr) else body[0]
    return None


def _failing_text(entry: Entry) -> str:
    code = entry.code
    position = next(islice(code.co_positions(), entry.lasti // 2, None), None)
    if position is None or None in position:
        return ""
    first, last, begins, ends = (int(number or 0) for number in position)
    lines = [
        linecache.getline(code.co_filename, number, entry.frame.f_globals).encode()
        for number in range(first, last + 1)
    ]
    if not lines or not all(lines):
        return ""
    lines[-1] = lines[-1][:ends]  # columns count bytes
    lines[0] = lines[0][begins:]
    return b"".join(lines).decode("utf-8", "replace")


def operation(entry: Entry) -> str:
    """The aten name of what a frame called of torch; "" when that is not certain."""
    node = failing(entry)
    if isinstance(node, ast.Assign | ast.Return | ast.AnnAssign):
        node = node.value
    if isinstance(node, ast.Call):
        name = _called(node.func, entry)
    elif isinstance(node, ast.BinOp):
        name = _OPERATORS.get(type(node.op), "") if _is_tensor_work(node, entry) else ""
    elif isinstance(node, ast.AugAssign):
        inner = _OPERATORS.get(type(node.op), "")
        name = f"{inner}_" if inner and _is_tensor_work(node, entry) else ""
    elif isinstance(node, ast.Subscript):
        name = "index" if isinstance(resolve(node.value, entry), torch.Tensor) else ""
    else:
        name = ""
    return f"aten::{name}" if name and is_aten(name) else ""


def is_aten(name: str) -> bool:
    """Whether torch has an operation of this name."""
    return bool(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))


def _called(function: ast.expr, entry: Entry) -> str:
    found = resolve(function, entry)
    if found is not None and not isinstance(found, torch.Tensor):
        # Functions written in C have no frame of their own; all others would be the next frame.
        is_torch = str(getattr(found, "__module__", None) or "").startswith("torch")
        owner = getattr(found, "__self__", None)
        is_torch |= isinstance(owner, ModuleType) and owner.__name__.startswith("torch")
        is_torch |= isinstance(owner, type) and owner.__module__.startswith("torch")
        is_torch |= isinstance(owner, torch.Tensor)
        name = getattr(found, "__name__", "")
        return name if is_torch and callable(found) and isinstance(name, str) else ""
    if isinstance(function, ast.Attribute):
        base = resolve(function.value, entry)
        if isinstance(base, torch.Tensor):
            return function.attr
        # What an expression in between gave is not kept anywhere.
        if base is None and not isinstance(function.value, ast.Name):
            return function.attr if hasattr(torch.Tensor, function.attr) else ""
    return ""


def _is_tensor_work(node: ast.AST, entry: Entry) -> bool:
    return any(
        isinstance(resolve(part, entry), torch.Tensor)
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    )


def resolve(node: ast.expr, entry: Entry) -> Any:
    """What a name or a dotted name stands for in a frame, as far as storage tells; else None."""
    if isinstance(node, ast.Name):
        frame = entry.frame
        for scope in (frame.f_locals, frame.f_globals, frame.f_builtins):
            if node.id in scope:
                return scope[node.id]
        return None
    if not isinstance(node, ast.Attribute):
        return None
    return _stored(resolve(node.value, entry), node.attr)


def _stored(owner: Any, name: str) -> Any:
    """An attribute that lies in storage; no property and no `__getattr__` is run."""
    kind = type(owner)
    if owner is None:
        return None
    if issubclass(kind, ModuleType):
        return vars(owner).get(name)
    if issubclass(kind, torch.Tensor):
        return None
    try:
        own = object.__getattribute__(owner, "__dict__")
    except (AttributeError, TypeError):
        return None
    if name in own:
        return own[name]
    for table in ("_parameters", "_buffers", "_modules"):
        inner = own.get(table) if issubclass(kind, nn.Module) else None
        if isinstance(inner, dict) and name in inner:
            return inner[name]
    return None


def names_in(node: ast.AST | None) -> list[ast.expr]:
    """Names and dotted names of an expression, in the order of the source."""
    if node is None:
        return []
    found = [part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)]
    return sorted(found, key=lambda part: (part.lineno, part.col_offset))
