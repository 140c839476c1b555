"""The end of a run: how it ended, what the report says, and where it is written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tuimon.diagnose.engine import Engine
from tuimon.diagnose.report import RunFacts, build_report, write_report
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.registry import ExitInfo, RunInfo
from tuimon.model.records import CommandState, Goodbye
from tuimon.model.text import plain
from tuimon.scribe import offspring

REPORT = "report.json"
DONE = "report.done"  # empty: written; else one line that says what went wrong
_OPEN_STATES = ("accepted",)


def how_it_ended(goodbye: Goodbye | None, last_step: int | None) -> ExitInfo:
    """By its last word; a training that ended without one was killed or crashed."""
    if goodbye is not None:
        return ExitInfo(goodbye.kind, goodbye.code, plain(goodbye.detail))
    where = "before its first step" if last_step is None else f"after step {last_step:,}"
    detail = f"ended without a last word {where}: killed (kill -9, out of memory) or crashed"
    return ExitInfo("killed", None, detail)


def newest(*steps: int | None) -> int | None:
    """The largest of the steps that are known."""
    return max((step for step in steps if step is not None), default=None)


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
        step_hint: newest step by the ring's header, whose record may be missing.
        lost: records that did not arrive, by reason.
        user_umask: decides the mode of a report outside the run folder.
    """

    info: RunInfo
    exit: ExitInfo
    engine: Engine
    chronicle: Chronicle
    step_hint: int | None
    lost: dict[str, int]
    user_umask: int

    @property
    def last_step(self) -> int | None:
        """Newest step of the primary optimizer that anything speaks of."""
        return newest(self.chronicle.last_step, self.step_hint)

    def write(self) -> list[str]:
        """Write the report everywhere it belongs; what could not be written, a sentence each."""
        last_step = self.last_step
        run = RunFacts(
            id=self.info.id,
            name=self.info.name,
            argv=self.info.argv,
            steps=0 if last_step is None else last_step + 1,
            ranks=max(1, self.info.world_size),
            exit_kind=self.exit.kind,
            exit_code=self.exit.code,
            exit_detail=self.exit.detail,
            overhead_frac=self.chronicle.overhead_frac,
            lost=self.lost,
            commands=self.chronicle.commands,
        )
        document = build_report(run, self.engine)
        if last_step is None:
            offspring.join(document, self.info)
        targets = [(self.info.path / REPORT, 0o600)]
        # Every rank has a run and a scribe of its own; the report that was asked for is rank 0's.
        if self.info.report and self.info.ranks[0].rank == 0:
            wanted = Path(self.info.cwd or "/") / self.info.report
            targets.append((wanted, 0o666 & ~self.user_umask))
        problems = []
        for target, mode in targets:
            try:
                write_report(target, document, mode)
            except OSError as error:
                why = error.strerror or type(error).__name__
                problems.append(plain(f"the report cannot be written to {target}: {why}"))
        return problems


def tell_done(folder: Path, problems: Sequence[str]) -> None:
    """Leave `report.done`, whole from its first moment; a folder that is gone is no error."""
    draft = folder / f".{DONE}.{os.getpid()}"
    with contextlib.suppress(OSError):
        draft.write_text("".join(f"{problem}\n" for problem in problems[:1]))
        os.replace(draft, folder / DONE)
