"""All processes of a run on this host: who has joined, who has left, and how they compare."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from tuimon.diagnose.findings import Finding
from tuimon.diagnose.incidents import PRIMARY
from tuimon.diagnose.joined import Joined, Member
from tuimon.diagnose.stragglers import Straggler, Stragglers
from tuimon.errors import TuimonError
from tuimon.feed import jobs, registry
from tuimon.feed.registry import ExitInfo, RunInfo
from tuimon.model.ranks import MAX_ROWS, STARTING, RankRow, RankRows
from tuimon.model.records import RUNNING, STATE_NAMES, AnyRecord, Step, loss_of
from tuimon.scribe.ends import End, words
from tuimon.scribe.ends import together as ends_together
from tuimon.scribe.follower import Follower
from tuimon.scribe.trainer import wait

JOIN_LIMIT_S = 2.0  # for ranks that a launcher has announced, after those that came have left
# How a rank fails because another one did: it says nothing about itself.
_LEFT_ALONE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|closed by (peer|remote)|DistBackendError"
    r"|DistNetworkError|ProcessExitedException|ProcessRaisedException|timed out waiting|peer gone",
    re.IGNORECASE,
)


class Crew:
    """The followers of a run, kept up to date with its `run.json`.

    Attributes:
        info: the run as it was last read.
        ranks: followers of its ranks, by rank.
        launcher: of the process that spawned them, where it made the run.
        stragglers: ranks that have held up the others for a while.
    """

    def __init__(self, info: RunInfo, clock: Callable[[], float]) -> None:
        self.info = info
        self.ranks: list[Follower] = []
        self.launcher: Follower | None = None
        self._clock = clock
        self._stamp: tuple[int, int] | None = None
        self._all_over_s: float | None = None
        self._stragglers = Stragglers()
        self.stragglers: set[int] = set()
        self._joined: Joined | None = None
        self._joined_of: tuple[object, list[list[Finding]]] = (None, [])  # what it was made of
        self._adopt(info)

    @property
    def lead(self) -> Follower:
        """The lowest rank here."""
        return self.ranks[0]

    @property
    def everybody(self) -> list[Follower]:
        """The ranks, and who spawned them."""
        return [*self.ranks, *([self.launcher] if self.launcher else [])]

    @property
    def is_one(self) -> bool:
        """Whether the run is a single process, as far as is known."""
        return self.info.world_size < 2 and len(self.ranks) < 2

    def refresh(self) -> bool:
        """Look whether somebody has joined; True when the lowest rank is another one now."""
        try:
            stat = os.stat(self.info.path / "run.json")
        except OSError:
            return False
        stamp = stat.st_mtime_ns, stat.st_ino
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            return self._adopt(registry.load(self.info.path))
        except TuimonError:
            return False

    def has_ended(self) -> bool:
        """Whether everybody has left, is read to the end, and nobody is expected any more."""
        if not all(each.is_over for each in self.everybody):
            self._all_over_s = None
            return False
        now_s = self._clock()
        if self._all_over_s is None:
            self._all_over_s = now_s
        missing = len(self.ranks) < self.info.ranks_here
        if missing and now_s - self._all_over_s < JOIN_LIMIT_S:
            return False
        closed = jobs.close(self.info)
        if closed is None:
            self.refresh()
            return False
        self.info = closed
        return True

    def wait(self, limit_s: float) -> None:
        """Sleep at most so long, less when a process ends."""
        wait([each.trainer for each in self.everybody if not each.is_over], limit_s)

    def close(self) -> None:
        """Let go of all of them."""
        for each in self.everybody:
            each.close()

    def see(self, follower: Follower, record: AnyRecord) -> None:
        """One record, for what compares ranks with each other."""
        if isinstance(record, Step) and record.optimizer == PRIMARY and not self.is_one:
            self._stragglers.add(follower.me.rank, record)

    def straggler(self) -> Straggler | None:
        """The rank that has begun to hold up the others, if one has."""
        going = [each.me.rank for each in self.ranks if not each.is_over]
        found = self._stragglers.look(going)
        if found is not None:
            self.stragglers.add(found.rank)
        return found

    def joined(self) -> Joined:
        """What the engines of all ranks say together."""
        culprit = self.culprit()
        rank = culprit.me.rank if culprit is not None else None
        members = [Member(each.me.rank, each.engine, tuple(each.differs)) for each in self.ranks]
        # Engines replace their findings as a whole, and only ever add symptoms.
        figures = [(each, len(each.engine.symptoms)) for each in members]
        findings = [each.engine.findings for each in members]
        if (rank, figures) != self._joined_of[0] or _differ(findings, self._joined_of[1]):
            self._joined_of = (rank, figures), findings
            self._joined = Joined(members, rank)
        assert self._joined is not None
        return self._joined

    def rows(self, now_s: float) -> RankRows:
        """How the ranks stand beside each other."""
        rows = [self._row(each) for each in self.ranks[:MAX_ROWS]]
        return RankRows(
            time_s=now_s,
            rows=rows,
            world_size=self.info.world_size,
            first_bad=min(self.joined().guilty, default=_first_bad(rows)),
        )

    def culprit(self) -> Follower | None:
        """The rank whose bad end came first and is no consequence of another one's."""
        bad = [each for each in self.ranks if each.is_over and end_of(each).is_bad]
        own = [each for each in bad if not _LEFT_ALONE.search(each.exit.detail)]
        return min(own or bad, key=lambda each: each.ended_s or 0.0, default=None)

    def exit(self) -> ExitInfo:
        """How the run ended: as its launcher did, else as the rank that ended the others."""
        if len(self.everybody) == 1:
            return self.lead.exit
        culprit = self.culprit()
        ends = {each.me.pid: end_of(each) for each in self.ranks}
        launcher = None if self.launcher is None else end_of(self.launcher)
        first = None if culprit is None else ends[culprit.me.pid]
        return ends_together([*ends.values()], first, launcher)

    def words_of(self, follower: Follower) -> str:
        """How a rank ended, with its name."""
        return end_of(follower).in_words

    def _row(self, follower: Follower) -> RankRow:
        me, step, device = follower.me, follower.last_step, follower.device
        stats: Step | object | None = step
        if step is not None and step.late and device is not None and device.step <= step.step:
            stats = device
        whole_s, own_s = self._stragglers.times(me.rank)
        bad, bad_step = follower.bad or ("", None)
        slow = self._stragglers.now
        return RankRow(
            rank=me.rank,
            pid=me.pid,
            state=self._state(follower),
            step=None if step is None else step.step,
            loss=None if stats is None else loss_of(stats),  # type: ignore[arg-type]
            grad_norm=getattr(stats, "grad_norm", None),
            step_s=whole_s,
            own_s=own_s,
            updated_s=None if step is None else step.time_ns / 1e9,
            differs=list(follower.differs),
            straggles=slow is not None and slow.rank == me.rank,
            bad=bad,
            bad_step=bad_step,
            exit=words(follower.exit) if follower.is_over else "",
            figures_step=None if stats is step else device.step,  # type: ignore[union-attr]
        )

    def _state(self, follower: Follower) -> str:
        if follower.is_over:
            return "gone"
        word = STATE_NAMES.get(follower.intake.state or RUNNING, STATE_NAMES[RUNNING])
        return STARTING if word == STATE_NAMES[RUNNING] and follower.last_step is None else word

    def _adopt(self, info: RunInfo) -> bool:
        """Follow whoever is new in `run.json`."""
        known = {each.me.pid: each for each in self.everybody}
        lead = self.ranks[0] if self.ranks else None

        def follower(me: registry.RankInfo) -> Follower:
            return known.get(me.pid) or Follower(info.path, me, info.id)

        self.ranks = [follower(me) for me in info.ranks]
        self.launcher = None if info.launcher is None else follower(info.launcher)
        self.info = info
        return lead is not None and lead is not self.ranks[0]


def _first_bad(rows: Sequence[RankRow]) -> int | None:
    """The rank whose loss was the first that was not finite.

    While an update is held it is not over: a bad loss is told, and there is no symptom of it yet.
    """
    bad = [
        (row.bad_step, row.rank) for row in rows if row.bad == "loss" and row.bad_step is not None
    ]
    return min(bad)[1] if bad else None


def end_of(follower: Follower) -> End:
    """How the process of a follower ended."""
    return End(follower.me.rank, follower.me.pid, follower.exit)


def _differ(some: list[list[Finding]], others: list[list[Finding]]) -> bool:
    """Whether these are not the very same lists."""
    return len(some) != len(others) or any(a is not b for a, b in zip(some, others, strict=True))
