"""The runs of this host at a glance: how each stands, and its loss as it goes on.

Reads rings and histories only; belongs to one thread and never waits. What a run's own view knows
of it stays there: here a few of its numbers are enough to tell it from the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import msgspec

from tuimon.errors import TuimonError
from tuimon.feed import registry
from tuimon.feed.history import read_history
from tuimon.feed.registry import RunInfo
from tuimon.feed.tail import Clock, RingTail
from tuimon.model.records import Loss, Step, loss_of
from tuimon.view.headers import GONE, header_of, state_of
from tuimon.view.late_start import seed_series
from tuimon.view.series import Series

LOOK_EVERY_S = 2.0  # for runs that are new or have ended
MAX_FOLLOWED = 12  # newest live runs whose loss is read
MAX_SHOWN = 50
POLL_S = 0.02
POLL_WINDOW_S = 10.0  # a rate speaks of the last seconds
_RECORDS = 200


class RunGlance(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        age_s: how long it has trained; since it began, where nothing tells when it ended.
        ended_s: how long ago it ended; None while it lives and where nothing tells.
        state: "running", "paused", "held", "unwatched", "silent" or "gone".
        ended: how it ended; "" while it lives.
        loss: None where it is not read.
    """

    info: RunInfo
    state: str
    step: int | None
    age_s: float
    ended: str = ""
    loss: Series | None = None
    steps_per_s: float | None = None
    ended_s: float | None = None


class _Followed:
    """A live run whose newest losses are read."""

    def __init__(self, info: RunInfo) -> None:
        self.info = info
        self.loss = Series("loss")
        self.step: int | None = None
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None
        history = read_history(info.history(0)) if info.ranks else None
        after = None
        if history is not None and history.run_id == info.id:
            after = history.up_to_sequence
            if "loss" in history.series:
                seed_series(self.loss, history.series["loss"])
        ring = info.path / (info.ranks[0].ring if info.ranks else "none")
        self._tail = RingTail(ring, after)

    def poll(self, max_s: float) -> None:
        """Read on, for about so long."""
        with contextlib.suppress(TuimonError):
            for record in self._tail.read(_RECORDS, max_s):
                if isinstance(record, Loss):
                    self.loss.append(record.step, record.value)
                elif isinstance(record, Step) and not record.optimizer:
                    loss = loss_of(record)
                    if loss is not None:
                        self.loss.append(record.step, loss)
                    self._note(record)

    def _note(self, record: Step) -> None:
        self.step = record.step
        now = (record.step, record.time_ns / 1e9)
        if self._first is None or now[1] - self._first[1] > 2 * POLL_WINDOW_S:
            self._first = self._last or now
        self._last = now

    @property
    def steps_per_s(self) -> float | None:
        if self._first is None or self._last is None or self._last[1] <= self._first[1]:
            return None
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])

    def close(self) -> None:
        self._tail.close()


class Runs:
    """All runs of this user on this host: live ones first, each time the newest first."""

    def __init__(
        self,
        *,
        list_runs: Callable[[], list[RunInfo]] = registry.list_runs,
        clock: Clock = time.time,
    ) -> None:
        self._list_runs = list_runs
        self._clock = clock
        self._looked_s = float("-inf")
        self._live: list[RunInfo] = []
        self._gone: list[RunInfo] = []
        self._ends: dict[str, float | None] = {}  # unix times; of a run that has ended they stay
        self._followed: dict[str, _Followed] = {}

    def poll(self) -> tuple[RunGlance, ...]:
        """How they stand now."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._look_around(now_s)
        share_s = POLL_S / max(1, len(self._followed))
        for each in self._followed.values():
            each.poll(share_s)
        live = [self._glance(info, now_s) for info in self._live]
        shown = self._gone[: max(0, MAX_SHOWN - len(live))]
        gone = [_ended(info, self._ends.get(info.id), now_s) for info in shown]
        return (*live, *gone)

    def close(self) -> None:
        """Let go of everything. Safe to call twice."""
        for each in self._followed.values():
            each.close()
        self._followed.clear()

    def _look_around(self, now_s: float) -> None:
        self._looked_s = now_s
        runs = list(reversed(self._list_runs()))
        self._live = [info for info in runs if registry.is_alive(info)]
        self._gone = [info for info in runs if info not in self._live]
        newest = self._gone[:MAX_SHOWN]
        self._ends = {
            info.id: self._ends[info.id] if info.id in self._ends else ended_at(info)
            for info in newest
        }
        wanted = {info.id: info for info in self._live[:MAX_FOLLOWED]}
        for run_id in [each for each in self._followed if each not in wanted]:
            self._followed.pop(run_id).close()
        for run_id, info in wanted.items():
            known = self._followed.get(run_id)
            if known is None or len(known.info.ranks) != len(info.ranks):
                if known is not None:
                    known.close()
                self._followed[run_id] = _Followed(info)

    def _glance(self, info: RunInfo, now_s: float) -> RunGlance:
        headers = [header_of(info, rank) for rank in info.ranks]
        steps = [each.step for each in headers if each is not None and each.step is not None]
        followed = self._followed.get(info.id)
        return RunGlance(
            info,
            state_of(headers, now_s),
            max(steps, default=info.last_step),
            max(0.0, now_s - info.started_at_s),
            loss=followed.loss if followed else None,
            steps_per_s=followed.steps_per_s if followed else None,
        )


def ended_at(info: RunInfo) -> float | None:
    """When a run that is over gave its last sign; None where its rings are gone."""
    headers = [header_of(info, rank) for rank in info.ranks]
    signs = [max(each.beat_ns, each.changed_ns) for each in headers if each is not None]
    newest = max(signs, default=0)
    return newest / 1e9 if newest else None


def _ended(info: RunInfo, ended_s: float | None, now_s: float) -> RunGlance:
    told = info.exit
    words = "ended without saying why"
    if told is not None:
        code = "" if told.code is None else f" {told.code}"
        words = f"{told.kind}{code}" + (f": {told.detail}" if told.detail else "")
    return RunGlance(
        info,
        GONE,
        info.last_step,
        max(0.0, (now_s if ended_s is None else ended_s) - info.started_at_s),
        words,
        ended_s=None if ended_s is None else max(0.0, now_s - ended_s),
    )
