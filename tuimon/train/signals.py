"""What handlers of signals do to code of ours that they interrupt; imports no torch.

A handler of the script's may run between any two lines of ours in the main thread.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


def is_from_handler(error: BaseException) -> bool:
    """Whether a handler of the script's has raised an exception that passes through us."""
    codes = {code for _, handler in _handlers() if (code := _code_of(handler)) is not None}
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in codes:
            return True
        step = step.tb_next
    return False


@contextmanager
def deferred() -> Iterator[None]:
    """Handlers of the script's run after this, as if their signals had come then.

    What they do is not a part of what is put back, and Ctrl-C as Python has it is not theirs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    moved = [pair for pair in _handlers() if pair[1] is not signal.default_int_handler]
    for number, _ in moved:
        signal.signal(number, later)
    try:
        yield
    finally:
        for number, handler in moved:
            if signal.getsignal(number) is later:
                signal.signal(number, handler)
        for number in dict.fromkeys(arrived):
            signal.raise_signal(number)


def _handlers() -> list[tuple[int, Any]]:
    """(signal, function) of those that Python code handles."""
    found = []
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            if callable(handler := signal.getsignal(number)):
                found.append((int(number), handler))
    return [(number, handler) for number, handler in found if not isinstance(handler, int)]


def _code_of(handler: Any) -> CodeType | None:
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = type(handler).__call__  # an object that can be called
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
