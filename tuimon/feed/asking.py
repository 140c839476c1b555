"""Asking a training that may have only just begun, and does not listen yet.

Blocks the thread that asks; reads nothing but what tells whether waiting has any use.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tuimon.errors import NoSuchRun, Refused
from tuimon.feed import channel, registry
from tuimon.feed.registry import RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model.commands import Request
from tuimon.model.records import ENDED, CommandState

ANSWER_S = 5.0  # the training's control thread answers at once unless the process is stopped
BEGINS_WITHIN_S = 30.0  # a run is listed before its script has imported torch
_POLL_S = 0.05


def ask(
    info: RunInfo,
    request: Request,
    *,
    patience_s: float = BEGINS_WITHIN_S,
    clock: Callable[[], float] = time.monotonic,
) -> CommandState:
    """What the training answers; one that has only just begun listens once it has imported torch.

    Raises:
        NoSuchRun: the training has ended.
        Refused: it does not listen, or does not answer.
    """
    until_s = clock() + patience_s
    while True:
        try:
            return channel.ask(info.control, request, ANSWER_S)
        except NoSuchRun:
            if _has_ended(info):
                raise
            if clock() >= until_s:
                raise Refused(
                    "the training does not listen: it has not imported torch yet, or its "
                    "control socket could not be opened"
                ) from None
        time.sleep(_POLL_S)


def _has_ended(info: RunInfo) -> bool:
    """Whether nobody will listen any more; a process may go on after what was watched has ended."""
    if not registry.is_alive(info):
        return True
    try:
        reader = RingReader(info.ring(), at_end=True)
    except NoSuchRun:
        return not (info.path / "run.json").exists()
    try:
        return reader.status().state == ENDED
    finally:
        reader.close()
