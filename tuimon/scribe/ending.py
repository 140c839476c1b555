"""The end of a run: how it ended, what the report says, and where it is written."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tuimon.diagnose.report import RunFacts, build_report, text_of
from tuimon.feed import private
from tuimon.feed.registry import ExitInfo
from tuimon.model.records import CommandState
from tuimon.model.text import plain
from tuimon.scribe import offspring
from tuimon.scribe.crew import Crew
from tuimon.scribe.follower import newest

REPORT = "report.json"
DONE = "report.done"  # empty: written; else one line that says what went wrong
_OPEN_STATES = ("accepted",)


def expired(commands: Sequence[CommandState]) -> list[CommandState]:
    """The last state of commands that the end of the run overtook."""
    return [
        msgspec.structs.replace(state, state="expired", reason="the training ended first")
        for state in commands
        if state.state in _OPEN_STATES
    ]


@dataclass(frozen=True)
class Ending:
    """Everything the report is made of.

    Attributes:
        user_umask: decides the mode of a report outside the run folder.
    """

    crew: Crew
    exit: ExitInfo
    user_umask: int

    @property
    def last_step(self) -> int | None:
        """Newest step of the primary optimizer that anything speaks of."""
        return newest(*(each.step_reached for each in self.crew.ranks))

    def write(self) -> list[str]:
        """Write the report everywhere it belongs; what could not be written, a sentence each."""
        crew, info, last_step = self.crew, self.crew.info, self.last_step
        chronicle = crew.lead.chronicle
        run = RunFacts(
            id=info.id,
            name=info.name,
            argv=info.argv,
            steps=0 if last_step is None else last_step + 1,
            ranks=max(1, info.world_size),
            exit_kind=self.exit.kind,
            exit_code=self.exit.code,
            exit_detail=self.exit.detail,
            overhead_frac=chronicle.overhead_frac,
            lost=self._lost(),
            commands=chronicle.commands,
            snapshots=chronicle.snapshots,
        )
        document = build_report(run, crew.joined())
        if not crew.is_one:
            document["run"]["by_rank"] = by_rank(crew)
        if last_step is None or info.launcher is not None:
            offspring.join(document, info)
        targets = [(info.path / REPORT, 0o600)]
        # Each host has a run and a scribe; the report that was asked for is that of rank 0.
        if info.report and (info.launcher is not None or info.index_of(0) is not None):
            wanted = Path(info.cwd or "/") / info.report
            targets.append((wanted, 0o666 & ~self.user_umask))
        problems = []
        for target, mode in targets:
            problem = write_to(target, document, mode, own=target.parent == info.path)
            problems += [problem] if problem else []
        return problems

    def _lost(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for each in self.crew.ranks:
            for reason, count in each.chronicle.lost(each.intake.lost).items():
                total[reason] = total.get(reason, 0) + count
        return total


def by_rank(crew: Crew) -> list[dict[str, Any]]:
    """What the report says of each rank of this host."""
    rows = crew.rows(0.0)
    ends = {each.me.rank: each.exit for each in crew.ranks}
    return [
        {
            "rank": row.rank,
            "pid": row.pid,
            "steps": 0 if row.step is None else row.step + 1,
            "exit": {
                "kind": ends[row.rank].kind,
                "code": ends[row.rank].code,
                "detail": ends[row.rank].detail,
            },
            "first_bad": row.rank == rows.first_bad,
            "straggles": row.rank in crew.stragglers,
            "differs": list(row.differs),
            "step_s": row.step_s,
            "own_s": row.own_s,
        }
        for row in rows.rows
    ]


def write_to(target: Path, document: dict[str, Any], mode: int, *, own: bool) -> str:
    """Write the report, in a folder of our `own` or where a person wants it; what went wrong."""
    payload = text_of(document).encode()
    try:
        if own:
            private.replace(target, payload, mode=mode, synced=True)
        else:
            private.put(target, payload, mode=mode)
    except OSError as error:
        why = error.strerror or type(error).__name__
        return plain(f"the report cannot be written to {target}: {why}")
    return ""


def tell_done(folder: Path, problems: Sequence[str]) -> None:
    """Leave `report.done`, whole from its first moment; a folder that is gone is no error."""
    with contextlib.suppress(OSError):
        text = "".join(f"{problem}\n" for problem in problems[:1])
        private.replace(folder / DONE, text.encode("utf-8", "replace"))
