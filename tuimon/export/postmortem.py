"""A run opened after the fact: what it recorded, and what is to be said of it.

The report that the scribe has left is taken as it is. Where there is none, as of a run that still
goes on or of a file that was sent, the recording is diagnosed anew by the same code.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuimon.diagnose.engine import Engine
from tuimon.diagnose.joined import Joined, Member
from tuimon.diagnose.report import SCHEMA, RunFacts, build_report
from tuimon.errors import NoSuchRun
from tuimon.feed import private
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.frames import SCRIBE
from tuimon.feed.recording import Recording, read_recording
from tuimon.feed.recordings import MAX_REPORT_BYTES, REPORT, find_recording
from tuimon.feed.registry import ExitInfo, RunInfo
from tuimon.model.records import Goodbye
from tuimon.view.frame import Frame
from tuimon.view.replay import ReplaySession

# How a run ended of which that is not known, beside what the scribe says.
RUNNING, UNRECORDED = "running", "unrecorded"


@dataclass(frozen=True)
class PostMortem:
    """One run, or one rank of it, to its last record.

    Attributes:
        path: the folder of its recording, or the file.
        info: None where no part of the recording says so.
        document: `tuimon.report/1`.
        frame: the last picture of a viewer, with all series and layers.
        rebuilt: whether the verdict was made from the recording, and not by the run's own scribe.
    """

    path: Path
    info: RunInfo | None
    document: dict[str, Any]
    frame: Frame
    recording: Recording
    rebuilt: bool

    @property
    def title(self) -> str:
        """What a person calls it."""
        return str(self.document["run"]["name"] or self.document["run"]["id"] or self.path.name)


def open_run(token: str | None) -> PostMortem:
    """The run that `token` names: an id, a name, a pid, a folder or a file; None is the newest.

    Raises:
        NoSuchRun, Refused, IncompatibleVersion: as their messages say.
    """
    path = find_recording(token)
    recording = read_recording(path)
    session = ReplaySession(recording, path=path, playing=False)
    session.drain()
    kept = _kept_report(path)
    document = kept if kept is not None else _rebuild(path, recording)
    return PostMortem(path, session.info, document, session.tick(), recording, kept is None)


def symptoms_of(path: Path, recording: Recording) -> list[dict[str, Any]]:
    """What was seen of a run, of all of its ranks, as its report has it."""
    document = _kept_report(path) or _rebuild(path, recording)
    return list(document.get("symptoms") or [])


def _rebuild(path: Path, recording: Recording) -> dict[str, Any]:
    """The report of a recording, by the rules of this version."""
    info = recording.info
    parts, lost = all_ranks(path, recording)
    told = [_Reading(each, each.rank or 0) for each in parts]
    joined = Joined([Member(each.rank, each.engine) for each in told])
    lead = told[0]
    last = max(each.last_step for each in told)
    ended = _exit(info, lead) or unfinished(recording, last)
    for read in told:
        for reason, count in read.chronicle.lost(read.recording.lost).items():
            lost[reason] = lost.get(reason, 0) + count
    run = RunFacts(
        id=info.id if info else "",
        name=info.name if info else path.stem,
        argv=info.argv if info else [],
        steps=last + 1,
        ranks=max(1, info.world_size if info else 1),
        exit_kind=ended.kind,
        exit_code=ended.code,
        exit_detail=ended.detail,
        overhead_frac=lead.chronicle.overhead_frac,
        lost=lost,
        commands=lead.chronicle.commands,
        snapshots=lead.chronicle.snapshots,
    )
    document = build_report(run, joined)
    if len(told) > 1:
        document["run"]["by_rank"] = [_of_rank(each, ended) for each in told]
    return document


def unfinished(recording: Recording, last_step: int) -> ExitInfo:
    """That a run has no end which is known, and how far what is known of it goes."""
    kind, why = UNRECORDED, "the end was not recorded"
    if recording.grows:
        kind, why = RUNNING, "the run goes on"
    reach = f"up to step {last_step:,}" if last_step >= 0 else "before its first step"
    return ExitInfo(kind, None, f"{why}: this covers it {reach}")


def all_ranks(path: Path, recording: Recording) -> tuple[list[Recording], dict[str, int]]:
    """The recordings of all ranks, and which of them are not there."""
    info = recording.info
    if info is None or len(info.ranks) < 2 or not path.is_dir():
        return [recording], {}
    parts: list[Recording] = []
    missing: dict[str, int] = {}
    for each in info.ranks:
        try:
            parts.append(read_recording(path, each.pid))
        except NoSuchRun:
            missing[f"recording of rank {each.rank}"] = 1
    return parts or [recording], missing


def _of_rank(read: _Reading, ended: ExitInfo) -> dict[str, Any]:
    how = _exit(None, read) or ended
    return {
        "rank": read.rank,
        "pid": read.recording.pid,
        "steps": read.last_step + 1,
        "exit": {"kind": how.kind, "code": how.code, "detail": how.detail},
    }


class _Reading:
    """One process of a recording, read to its end by the engine and the chronicle."""

    def __init__(self, recording: Recording, rank: int) -> None:
        self.recording = recording
        self.rank = rank
        self.engine = Engine(rank)
        self.chronicle = Chronicle(recording.info.id if recording.info else "")
        self.goodbye: Goodbye | None = None
        for frame in recording.frames():
            record = recording.decoded(frame)
            if record is None:
                continue
            self.chronicle.add(record)
            if frame.source != SCRIBE:  # its findings are those that are made here again
                self.engine.see(record)
            if isinstance(record, Goodbye):
                self.goodbye = record
        self.engine.close()

    @property
    def last_step(self) -> int:
        """-1 before there is one."""
        return -1 if self.chronicle.last_step is None else self.chronicle.last_step


def _exit(info: RunInfo | None, read: _Reading) -> ExitInfo | None:
    """How it ended, as the run or the process itself has said; None where neither has."""
    if info is not None and info.exit is not None:
        return info.exit
    goodbye = read.goodbye
    return ExitInfo(goodbye.kind, goodbye.code, goodbye.detail) if goodbye else None


def _kept_report(path: Path) -> dict[str, Any] | None:
    """What the scribe wrote at the end of the run; None where it is not there or not whole."""
    if not path.is_dir():
        return None
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(private.read_small(path / REPORT, MAX_REPORT_BYTES))
        if isinstance(document, dict) and document.get("schema") == SCHEMA:
            return document
    return None
