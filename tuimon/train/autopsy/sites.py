"""Places in the user's code: which frame an operation came from, and the text of its line.

Reads stacks of the running thread only; keeps no frame.
"""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from tuimon.model.text import plain

MAX_SOURCE = 200  # characters of a line that are told
_TRACEBACK = "traceback_"  # where autograd's anomaly mode keeps the stack of the forward
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')

_OURS = str(Path(__file__).resolve().parents[1]) + "/"
_TORCH = str(Path(torch.__file__).resolve().parent) + "/"
_STDLIB = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib")})
_INSTALLED = ("/site-packages/", "/dist-packages/")
_ENGINE = "_engine_run_backward"  # the Python function that enters autograd's engine
_CHECKPOINT = _TORCH + "utils/checkpoint.py"

_foreign: dict[str, bool] = {}  # file name -> whether it is none of the user's


class Place(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    function: str = ""


class Below(NamedTuple):
    """What lies between autograd's engine and an operation.

    Attributes:
        place: innermost line of the user's, None when no Python of theirs runs.
        recomputed: a checkpointed part of the forward runs again.
    """

    place: Place | None
    recomputed: bool


def is_foreign(file: str) -> bool:
    """Whether a file is torch's, ours, Python's own, or no file at all."""
    known = _foreign.get(file)
    if known is None:
        known = (
            file.startswith((_TORCH, _OURS))
            or (file.startswith(_STDLIB) and not any(part in file for part in _INSTALLED))
            or (file.startswith("<") and not file.startswith(("<ipython", "<stdin>")))
        )
        _foreign[file] = known
    return known


def caller_place() -> Place | None:
    """The innermost line of the user's that led here."""
    return innermost(None)


def innermost(entry: CodeType | None) -> Place | None:
    """The innermost line of the user's that was called from the function `entry`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is entry:
            return None
        if not is_foreign(code.co_filename):
            return Place(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


def below_engine(entry: CodeType) -> Below:
    """Python that autograd's engine called to reach the running operation."""
    frame: FrameType | None = sys._getframe(1)
    place = None
    recomputed = False
    while frame is not None:
        code = frame.f_code
        if code.co_name == _ENGINE or code is entry:
            return Below(place, recomputed)
        if code.co_filename == _CHECKPOINT:
            recomputed = True
        elif place is None and not is_foreign(code.co_filename):
            place = Place(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    # The engine's own thread on a device: its stack begins with what the engine called.
    return Below(place, recomputed)


def remembered(node: Any) -> Place | None:
    """Where the forward operation of an autograd node stood, if anomaly mode was on then."""
    for entry in reversed(node.metadata.get(_TRACEBACK, ())):
        for file, line, function in reversed(_FRAME.findall(entry)):
            if not is_foreign(file):
                return Place(file, int(line), function)
    return None


def source_of(place: Place | None) -> str:
    """The text of a line, without what a terminal would obey; "" where there is none."""
    if place is None:
        return ""
    return plain(linecache.getline(place.file, place.line).strip(), MAX_SOURCE)
