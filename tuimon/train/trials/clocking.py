"""The time that trials have, and what one of them came to. Runs nothing by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tuimon.train.trials.judging import Judgement

_Played = TypeVar("_Played")


class Trial(NamedTuple):
    """One that was made."""

    words: str
    judgement: Judgement
    sample: int | None = None


class Clock:
    """The time that trials have, and how much one replay takes."""

    def __init__(self, limit_s: float, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began_s = self._lap_s = now()
        self._until_s = self._began_s + limit_s
        self._newest_s = 0.0
        self._runs = 0

    def spent(self, share: float = 1.0) -> bool:
        """Whether one more replay would go beyond a share of the time."""
        limit_s = (self._until_s - self._began_s) * share
        return self._now() + self._newest_s > self._began_s + limit_s

    @property
    def left_s(self) -> float:
        """Seconds until the end of the time."""
        return max(0.0, self._until_s - self._now())

    def timed(self, play: Callable[[], _Played]) -> _Played:
        """A replay, counted."""
        began_s = self._now()
        self._runs += 1
        outcome = play()
        self._newest_s = self._now() - began_s
        return outcome

    def lap_s(self) -> float:
        """Seconds since the last lap."""
        now_s = self._now()
        took_s, self._lap_s = now_s - self._lap_s, now_s
        return took_s

    def lap_runs(self) -> int:
        """Replays since the last lap."""
        runs, self._runs = self._runs, 0
        return runs
