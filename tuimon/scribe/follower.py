"""One process of a run as the scribe follows it: its ring, its life, its diagnosis and history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tuimon.diagnose.engine import Engine
from tuimon.diagnose.incidents import PRIMARY
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.registry import ExitInfo, RankInfo
from tuimon.model.loop import RankState
from tuimon.model.records import AnyRecord, DeviceStats, Goodbye, Loss, Step
from tuimon.model.text import plain
from tuimon.scribe.intake import READ_RECORDS, Intake
from tuimon.scribe.trainer import Trainer


class Follower:
    """Reads one process to its end.

    Attributes:
        me: the process.
        goodbye: its last word.
        ended_s: unix time at which it ended, as it said or as it was found out; None before.
        is_over: it has ended, and everything it has written has been read.
        is_behind: there is more to read at once.
        last_step: its newest update of the primary optimizer.
        bad: what of which step was the first that was not finite.
        differs: ranks whose weights disagreed with its own when they were last compared.
    """

    def __init__(self, folder: Path, me: RankInfo, run_id: str) -> None:
        self.me = me
        self.trainer = Trainer(me.pid, me.start_ticks)
        self.intake = Intake(folder / me.ring)
        self.engine = Engine(me.rank)
        self.chronicle = Chronicle(run_id)
        self.goodbye: Goodbye | None = None
        self.ended_s: float | None = None
        self.is_over = False
        self.is_behind = False
        self.last_step: Step | None = None
        self.device: DeviceStats | None = None
        self.bad: tuple[str, int] | None = None
        self.differs: list[int] = []
        self.lost_said: dict[str, int] = {}
        self.written: tuple[int, Path] | None = None  # records in the history that was written

    @property
    def exit(self) -> ExitInfo:
        """How it ended, once it has."""
        return how_it_ended(self.goodbye, self.step_reached)

    @property
    def step_reached(self) -> int | None:
        """Newest step that anything speaks of."""
        return newest(self.chronicle.last_step, self.intake.step_hint)

    def read(self, now_s: float) -> Iterator[list[AnyRecord]]:
        """New records in pieces: one, or as many as there are once the process has ended."""
        if self.is_over:
            return
        # Asked before the ring is read, so that what was written before the end is read after it.
        is_gone = self.trainer.is_gone
        records = self.intake.read()
        self.is_behind = len(records) >= READ_RECORDS
        yield self._noted(records)
        if self.goodbye is None and not is_gone:
            return
        if self.ended_s is None:
            said_s = self.goodbye.time_s if self.goodbye is not None else 0.0
            self.ended_s = said_s or now_s
        if self.goodbye is None and records:
            return  # perhaps there is a last word among what follows
        while records := self.intake.read_to_end():
            yield self._noted(records)
        self.is_over = True

    def close(self) -> None:
        """Let go of ring and process. Safe to call twice."""
        self.intake.close()
        self.trainer.close()

    def _noted(self, records: list[AnyRecord]) -> list[AnyRecord]:
        for record in records:
            match record:
                case Step() if record.optimizer == PRIMARY:
                    self.last_step = record
                    if record.bad and self.bad is None and not record.skipped:
                        self.bad = record.bad[0].what, record.step
                case DeviceStats() if record.optimizer == PRIMARY:
                    self.device = record
                case Loss():
                    self.bad = self.bad or ("loss", record.step)
                case RankState():
                    self.differs = list(record.differing)
                case Goodbye():
                    self.goodbye = record
                case _:
                    pass
        return records


def how_it_ended(goodbye: Goodbye | None, last_step: int | None) -> ExitInfo:
    """By its last word; a training that ended without one was killed or crashed."""
    if goodbye is not None:
        return ExitInfo(goodbye.kind, goodbye.code, plain(goodbye.detail))
    where = "before its first step" if last_step is None else f"after step {last_step:,}"
    detail = f"ended without a last word {where}: killed (kill, scheduler, no memory) or crashed"
    return ExitInfo("killed", None, detail)


def newest(*steps: int | None) -> int | None:
    """The largest of the steps that are known."""
    return max((step for step in steps if step is not None), default=None)
