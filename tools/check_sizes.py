"""Compare the size of files, functions, classes and signatures with the limits of the project.

Run as a program it prints one line per violation and ends with 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tuimon", "demo", "tools", "tests")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_CLASS_LINES = 250
MAX_POSITIONAL = 5

# "file" or "file::name" -> why this one may be larger.
EXCEPTIONS: dict[str, str] = {
    "tuimon/feed/chronicle.py::Chronicle": "one method for each kind of record",
    "tuimon/feed/chronicle.py::add": "one case for each kind of record",
    "tuimon/train/autopsy/interpreter.py::Interpreter": "one method for each group of opcodes",
    "tuimon/train/monitor.py::watch": "half of it tells the arguments of the public call",
    "tuimon/train/update.py::step_record": "one line for each field of the record",
    "tests/tui/test_keys.py": "one test for each group of keys",
}
# Scripts of others, measured as they wrote them.
AS_WRITTEN = ("tests/cases/second/", "tests/cases/third/", "tests/cases/fourth/")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def violations(root: Path = ROOT) -> Iterator[str]:
    """One sentence for each thing that is too large and not excepted."""
    unused = set(EXCEPTIONS)
    for path in sorted(p for folder in FOLDERS for p in (root / folder).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith(AS_WRITTEN):
            continue
        for place, sentence in check_source(name, path.read_text(encoding="utf-8")):
            if place in EXCEPTIONS:
                unused.discard(place)
            else:
                yield sentence
    for place in sorted(unused):
        yield f"{place}: is within the limits; remove its exception"


def check_source(name: str, source: str) -> Iterator[tuple[str, str]]:
    """(place, sentence) for each thing in one file that is over a limit."""
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        yield name, f"{name}: {lines} lines, limit {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.ClassDef):
            yield from _too_long(name, node, MAX_CLASS_LINES)
        elif isinstance(node, Function):
            yield from _too_long(name, node, MAX_FUNCTION_LINES)
            yield from _too_wide(name, node)


def _too_long(name: str, node: ast.ClassDef | Function, limit: int) -> Iterator[tuple[str, str]]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > limit:
        place = f"{name}::{node.name}"
        yield place, f"{place}: {lines} lines, limit {limit} (line {node.lineno})"


def _too_wide(name: str, node: Function) -> Iterator[tuple[str, str]]:
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    count = len(names) - (names[:1] in (["self"], ["cls"]))
    if count > MAX_POSITIONAL:
        place = f"{name}::{node.name}"
        yield place, f"{place}: {count} positional parameters, limit {MAX_POSITIONAL}"


if __name__ == "__main__":
    found = list(violations())
    print("\n".join(found) or "sizes: all within the limits")
    sys.exit(bool(found))
