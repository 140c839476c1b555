"""Makes a traceback read as it would without tuimon: our frames out, torch's fast path back in.

Works on exceptions that nobody caught, just before they are shown; imports no torch.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple

_PACKAGE = Path(__file__).resolve().parents[2]
# Demo scripts live below the same folder and are the user's code as far as this is concerned.
_OURS = tuple(f"{_PACKAGE / part}/" for part in ("train", "feed", "model", "diagnose"))
_IMPORTLIB = "<frozen importlib"

_MODULE_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)

_entries: set[CodeType] = set()


class Entry(NamedTuple):
    """One line of a traceback."""

    frame: Any
    lasti: int
    lineno: int

    @property
    def code(self) -> CodeType:
        code: CodeType = self.frame.f_code
        return code


def starts_the_script(code: CodeType) -> None:
    """Say which of our functions calls the user's code: it and all before it disappear."""
    _entries.add(code)


def clean(error: BaseException) -> None:
    """Remove what tuimon added from the traceback of `error` and of everything it is chained to."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if current.__traceback__ is not None:
            current.__traceback__ = cleaned(current.__traceback__)
        linked = [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            linked.extend(current.exceptions)
        waiting.extend(other for other in linked if other is not None)


def cleaned(traceback: TracebackType) -> TracebackType | None:
    """The traceback without our frames; the same object when there is nothing to change."""
    before = list(_entries_of(traceback))
    after = _with_fast_calls(_without_ours(before))
    if after == before:
        return traceback
    rebuilt: TracebackType | None = None
    for entry in reversed(after):
        rebuilt = TracebackType(rebuilt, entry.frame, entry.lasti, entry.lineno)
    return rebuilt


def _entries_of(traceback: TracebackType | None) -> Iterator[Entry]:
    while traceback is not None:
        yield Entry(traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
        traceback = traceback.tb_next


def _without_ours(entries: list[Entry]) -> list[Entry]:
    start = 0
    for index, entry in enumerate(entries):
        if entry.code in _entries:
            start = index + 1
    kept: list[Entry] = []
    dropped_import = False
    for entry in entries[start:]:
        filename = entry.code.co_filename
        if filename.startswith(_OURS):
            # Python hides the import machinery around a module; ours stood between and kept it.
            dropped_import = entry.code.co_name == "exec_module"
            while dropped_import and kept and kept[-1].code.co_filename.startswith(_IMPORTLIB):
                kept.pop()
        elif not (dropped_import and filename.startswith(_IMPORTLIB)):
            dropped_import = False
            kept.append(entry)
    return kept


def _with_fast_calls(entries: list[Entry]) -> list[Entry]:
    """Undo what our hook on a module changes in `Module._call_impl`.

    A module without hooks calls `forward` at once; with one it goes through a nested function,
    which shows in the traceback as another line number and an extra frame.
    """
    kept: list[Entry] = []
    position = 0
    while position < len(entries):
        entry = entries[position]
        inner = entries[position + 1] if position + 1 < len(entries) else None
        fast = _fast_call(entry, inner)
        kept.append(fast or entry)
        position += 2 if fast else 1
    return kept


def _fast_call(entry: Entry, inner: Entry | None) -> Entry | None:
    """`entry` as the fast path has it, when only our hook made `Module._call_impl` slow."""
    torch_module = sys.modules.get("torch.nn.modules.module")
    if inner is None or torch_module is None:
        return None
    slow = torch_module.Module._call_impl.__code__
    if entry.code is not slow or inner.code not in slow.co_consts:
        return None
    module = entry.frame.f_locals.get("self")
    hooks = [vars(module).get(name) for name in _MODULE_HOOKS]
    hooks += [getattr(torch_module, name, None) for name in _GLOBAL_HOOKS]
    if any(_is_foreign(hook) for table in hooks if table for hook in list(table.values())):
        return None
    place = _fast_call_place(slow)
    return Entry(entry.frame, *place) if place else None


def _is_foreign(hook: object) -> bool:
    owner = getattr(hook, "__self__", hook)
    named = hook if isinstance(getattr(hook, "__module__", None), str) else type(owner)
    return not str(getattr(named, "__module__", "")).startswith("tuimon.")


def _fast_call_place(code: CodeType) -> tuple[int, int] | None:
    """Offset and line of the first `forward_call(*args, **kwargs)` in `Module._call_impl`."""
    loaded = False
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD_") and instruction.argval == "forward_call":
            loaded = True
        elif loaded and instruction.opname == "CALL_FUNCTION_EX":
            positions = instruction.positions
            if positions is None or positions.lineno is None:
                return None
            return instruction.offset, positions.lineno
    return None
