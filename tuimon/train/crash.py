"""The scene of a crash: an exception that nobody caught, looked at while its frames still live.

Reads the traceback, changes nothing in it and keeps nothing of it; runs after the user's code.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from tuimon.model.autopsy import FORWARD
from tuimon.model.batches import TensorSummary
from tuimon.model.crash import DATA, MAX_FRAMES, OTHER, CodePlace, Crash
from tuimon.model.text import plain
from tuimon.train import frames
from tuimon.train.facts.shortage import is_shortage, memory_figures
from tuimon.train.launch import tracebacks
from tuimon.train.launch.tracebacks import Entry
from tuimon.train.layers import unwrap
from tuimon.train.operands import look_at_operands

if TYPE_CHECKING:
    from tuimon.train.observer import Observer

MAX_MESSAGE = 500
_MAX_DEPTH = 200  # frames from the innermost one outwards: a recursion has thousands
_MAX_LINKS = 8
_ELSEWHERE = "Traceback (most recent call last)"
_FRAME_LINE = re.compile(r'^ *File "(.+)", line (\d+), in (\S+)', re.MULTILINE)


def look_at_crash(error: BaseException, observer: Observer) -> Crash:
    """What the traceback of an uncaught exception tells.

    Args:
        error: the exception, still with its traceback.
        observer: names of modules, and where the training stands.
    """
    origin = origin_of(error)
    entries = _entries(origin)
    users = [entry for entry in entries if frames.is_users(entry.code.co_filename)]
    names = _module_names(observer, entries)
    module = _innermost(entries, names)
    path = names.get(id(module), "") if module is not None else ""
    message = str(error)
    places = _told_by(message) or [_place(entry, names) for entry in users]
    elsewhere = bool(places) and _ELSEWHERE in message
    phase, op = _doing(entries, observer)
    inputs: list[TensorSummary] = []
    notes: list[str] = []
    if users and not elsewhere:
        failed = entries[entries.index(users[-1]) :]
        inputs, left_out = look_at_operands(failed, module, path, _parameter_names(observer))
        notes += [f"{left_out} more tensors were not looked at"] if left_out else []
    if elsewhere:
        notes.append("raised in another process, whose tensors cannot be looked at")
    short = is_shortage(origin) or is_shortage(error)
    return Crash(
        step=_step_of(phase, observer),
        time_ns=time.time_ns(),
        rank=observer.session.rank,
        kind=type(error).__name__,
        message=_short(message),
        cause="" if origin is error else _short(f"{type(origin).__name__}: {origin}"),
        phase=phase,
        place=places[-1] if places else None,
        frames=places[-MAX_FRAMES:],
        module=path,
        module_type=type(unwrap(module)).__name__ if module is not None else "",
        in_model=module is not None,
        op="" if elsewhere else op,
        library=_library(entries),
        inputs=inputs,
        memory=memory_figures(f"{message} {origin}") if short else [],
        out_of_memory=short,
        notes=notes,
    )


def origin_of(error: BaseException) -> BaseException:
    """The exception that started it: what it was raised from, or what an exit answers to."""
    for _ in range(_MAX_LINKS):
        inner = error.__cause__
        if inner is None and isinstance(error, SystemExit):
            inner = error.__context__
        if inner is None or inner.__traceback__ is None:
            break
        error = inner
    return error


def _entries(error: BaseException) -> list[Entry]:
    """The frames from the script's first one to the innermost, without tuimon's."""
    traceback = error.__traceback__
    if traceback is not None:
        traceback = tracebacks.cleaned(traceback)
    found = []
    while traceback is not None:
        found.append(Entry(traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found[-_MAX_DEPTH:]


def _module_names(observer: Observer, entries: Sequence[Entry]) -> dict[int, str]:
    """Id of every module of the watched models -> its path; of the outermost one without any."""
    roots = observer.roster.roots()
    if not roots:
        running = (frames.own_module(entry) for entry in entries)
        first = next((module for module in running if module is not None), None)
        roots = [] if first is None else [("", first)]
    names: dict[int, str] = {}
    for prefix, model in roots:
        names.setdefault(id(model), prefix.rstrip("."))
        for name, module in unwrap(model).named_modules():
            names.setdefault(id(module), plain((prefix + name).rstrip(".")))
    return names


def _parameter_names(observer: Observer) -> dict[int, str]:
    layers = observer.roster.layers
    return {id_: layers.table.names[place] for id_, place in layers.place_of.items()}


def _innermost(entries: Sequence[Entry], names: dict[int, str]) -> nn.Module | None:
    for entry in reversed(entries):
        module = frames.own_module(entry)
        if module is not None and id(module) in names:
            return module
    return None


def _place(entry: Entry, names: dict[int, str]) -> CodePlace:
    filename = entry.code.co_filename
    module = frames.own_module(entry)
    return CodePlace(
        file=plain(frames.shown_path(filename), 400),
        line=entry.lineno,
        function=plain(entry.code.co_name, 100),
        source=frames.source_line(filename, entry.lineno, entry.frame.f_globals),
        module=names.get(id(module)) if module is not None else None,
    )


def _told_by(message: str) -> list[CodePlace]:
    """The user's frames in a traceback that another process wrote into the message."""
    if _ELSEWHERE not in message:
        return []
    return [
        CodePlace(
            file=plain(frames.shown_path(file), 400),
            line=int(line),
            function=plain(function, 100),
            source=frames.source_line(file, int(line)),
        )
        for file, line, function in _FRAME_LINE.findall(message)
        if frames.is_users(file)
    ]


def _doing(entries: Sequence[Entry], observer: Observer) -> tuple[str, str]:
    """(phase, aten operation) at the innermost frame."""
    op = frames.operation(entries[-1]) if entries else ""
    phase = frames.phase_of(entries)
    if not phase:
        # Loss code has no frame that tells; a forward has begun and no backward has followed it.
        in_forward = observer.times.forward_began_s is not None
        phase = FORWARD if op or in_forward else OTHER
    return phase, "" if phase == DATA else op


def _library(entries: Sequence[Entry]) -> str:
    """Where in a library it was raised; "" when it was raised by the user's own line."""
    if not entries or frames.is_users(entries[-1].code.co_filename):
        return ""
    filename = entries[-1].code.co_filename
    inside = frames.in_torch(filename)
    shown = os.path.join("torch", inside) if inside else frames.shown_path(filename)
    return plain(f"{shown}:{entries[-1].lineno}", 400)


def _step_of(phase: str, observer: Observer) -> int:
    """The update that was being prepared, or the last one where none was."""
    step, times = observer.roster.next_step(), observer.times
    is_between = phase in (DATA, OTHER) and times.forward_s is None
    return step - 1 if is_between and times.forward_began_s is None and step else step


def _short(message: str) -> str:
    """One line; of a message that carries a traceback its last line, which names the error."""
    if _ELSEWHERE in message:
        lines = [line for line in message.splitlines() if line.strip()]
        message = lines[-1] if lines else ""
    return plain(message, MAX_MESSAGE)
