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
from tuimon.feed.registry import RunInfo
from tuimon.model.records import Goodbye
from tuimon.view.frame import Frame
from tuimon.view.replay import ReplaySession


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
    document = kept if kept is not None else rebuild(path, recording)
    return PostMortem(path, session.info, document, session.tick(), recording, kept is None)


def rebuild(path: Path, recording: Recording) -> dict[str, Any]:
    """The report of a recording, by the rules of this version."""
    parts = [recording]
    info = recording.info
    if path.is_dir() and info is not None and len(info.ranks) > 1:
        parts = []
        for each in info.ranks:
            with contextlib.suppress(NoSuchRun):  # a rank that was never recorded
                parts.append(read_recording(path, each.pid))
    told = [_Reading(each, _rank_of(each)) for each in parts or [recording]]
    joined = Joined([Member(each.rank, each.engine) for each in told])
    lead = told[0]
    kind, code, detail = _exit(info, lead)
    last = max((each.chronicle.last_step or -1 for each in told), default=-1)
    lost: dict[str, int] = {}
    for read in told:
        for reason, count in read.chronicle.lost(read.recording.lost).items():
            lost[reason] = lost.get(reason, 0) + count
    run = RunFacts(
        id=info.id if info else "",
        name=info.name if info else path.stem,
        argv=info.argv if info else [],
        steps=last + 1,
        ranks=max(1, info.world_size if info else 1),
        exit_kind=kind,
        exit_code=code,
        exit_detail=detail,
        overhead_frac=lead.chronicle.overhead_frac,
        lost=lost,
        commands=lead.chronicle.commands,
        snapshots=lead.chronicle.snapshots,
    )
    return build_report(run, joined)


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


def _rank_of(recording: Recording) -> int:
    ranks = recording.info.ranks if recording.info is not None else []
    return next((each.rank for each in ranks if each.pid == recording.pid), 0)


def _exit(info: RunInfo | None, lead: _Reading) -> tuple[str, int | None, str]:
    if info is not None and info.exit is not None:
        return info.exit.kind, info.exit.code, info.exit.detail
    if lead.goodbye is not None:
        return lead.goodbye.kind, lead.goodbye.code, lead.goodbye.detail
    return "ok", None, "still running, or its end was not recorded"


def _kept_report(path: Path) -> dict[str, Any] | None:
    """What the scribe wrote at the end of the run; None where it is not there or not whole."""
    if not path.is_dir():
        return None
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(private.read_small(path / REPORT, MAX_REPORT_BYTES))
        if isinstance(document, dict) and document.get("schema") == SCHEMA:
            return document
    return None
