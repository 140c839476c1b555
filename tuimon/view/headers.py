"""How a run stands, by what the headers of its rings say; nothing in them is read."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tuimon.errors import TuimonError
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.feed.ring import RingReader, RingStatus
from tuimon.model.records import ENDED, HELD, PAUSED, RUNNING, STATE_NAMES, UNWATCHED

SILENT_AFTER_S = 30.0  # longer than nearly every step; the live view knows the run's own pace
_TELLING = tuple(STATE_NAMES[each] for each in (HELD, PAUSED, UNWATCHED, RUNNING))
GONE = STATE_NAMES[ENDED]


def state_of(headers: Sequence[RingStatus | None], now_s: float) -> str:
    """The word for a run: a rank that is held or paused stands for all, for they wait for it."""
    words = [_state(header, now_s) for header in headers] or ["silent"]
    return next((word for word in _TELLING if word in words), words[0])


def header_of(info: RunInfo, rank: RankInfo) -> RingStatus | None:
    """What the ring of a rank says of itself; None where it cannot be read."""
    ring = info.path / rank.ring
    with contextlib.suppress(TuimonError, OSError), contextlib.closing(RingReader(ring)) as reader:
        return reader.status()
    return None


def _state(status: RingStatus | None, now_s: float) -> str:
    if status is None:
        return "silent"
    name = STATE_NAMES.get(status.state, STATE_NAMES[RUNNING])
    if status.state == RUNNING and now_s - status.beat_ns / 1e9 > SILENT_AFTER_S:
        return "silent"
    # It has said goodbye and is still there: its last `atexit` functions run.
    return STATE_NAMES[RUNNING] if name == GONE else name
