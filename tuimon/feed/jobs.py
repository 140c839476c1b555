"""Ranks of one job on one host are one run: the first that comes makes it, the others join it.

Joining is a change of `run.json` under a lock. Nobody waits for another rank: the lock is held for
a few file operations, and who does not get it in time makes a run of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tuimon.errors import NoRoom, TuimonError
from tuimon.feed import paths, registry
from tuimon.feed.registry import ExitInfo, RankInfo, RunInfo
from tuimon.feed.ring import RingReader

LOCK_LIMIT_S = 2.0  # some file operations, on a disk that is busy
_POLL_S = 0.002
_DOOR = ".tuimon-door"  # in the folder of the runs: who makes a run for a job
_LOCK = "run.lock"  # in a run's folder: who changes its `run.json`


class Place(msgspec.Struct, frozen=True):
    """Where a process stands in a training of several.

    Attributes:
        rank, world_size: of the process group, or as its launcher has told.
        job: what all its ranks on this host know the job by; "" for a process that is alone.
        leads: whether it answers for the run on this host.
        ranks_here: how many ranks there will be on this host; 0 where nobody has said so.
        one_attempt: `job` names one attempt of the job, so that a rank may come when the others
            are gone; without it only living ranks are joined.
        launcher: folder of the run of the process that spawned this one.
    """

    rank: int = 0
    world_size: int = 1
    job: str = ""
    leads: bool = True
    ranks_here: int = 0
    one_attempt: bool = False
    launcher: str = ""


def enter(
    place: Place,
    *,
    name: str,
    argv: list[str],
    versions: dict[str, str] | None = None,
    report: str | None = None,
    total_steps: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[RunInfo, RankInfo, bool]:
    """Join the run of this process's job, or make one.

    Returns:
        The run, this process in it, and whether it was made now.

    Raises:
        NoRoom: no candidate folder can hold a run.
    """

    def make() -> tuple[RunInfo, RankInfo, bool]:
        info = registry.create_run(
            name=name,
            argv=argv,
            versions=versions,
            world_size=place.world_size,
            rank=place.rank,
            report=report,
            job=place.job,
            ranks_here=place.ranks_here,
            leads=place.leads,
            total_steps=total_steps,
            parent=_parent(place),
            environ=environ,
        )
        return info, info.ranks[0], True

    if not place.job:
        return make()
    with _door(environ):
        joined = _spawned(place) or _newest(place, environ)
        return make() if joined is None else (*joined, False)


def leave(info: RunInfo, me: RankInfo) -> None:
    """Undo `enter`, for a process that cannot be watched: a run of nobody is not listed."""
    with _locked(info.path / _LOCK):
        now = _reread(info)
        others = [each for each in now.ranks if (each.rank, each.pid) != (me.rank, me.pid)]
        if others:
            without_me = msgspec.structs.replace(now, ranks=others)
        elif now.launcher is not None:  # it is its own run again
            without_me = msgspec.structs.replace(now, ranks=[now.launcher], launcher=None, job="")
        else:
            return registry.withdraw(now)
        with contextlib.suppress(NoRoom):
            registry.save(without_me)


def close(info: RunInfo) -> RunInfo | None:
    """Let nobody join any more; None when somebody has joined since `info` was read."""
    with _locked(info.path / _LOCK):
        now = _reread(info)
        if _crew(now) != _crew(info):
            return None
        closed = msgspec.structs.replace(now, closed=True)
        with contextlib.suppress(NoRoom):
            registry.save(closed)
        return closed


def record_exits(
    info: RunInfo,
    how: ExitInfo,
    last_step: int | None,
    of_pids: Mapping[int, tuple[ExitInfo, int | None]],
) -> RunInfo:
    """The run with its end, and that of each of its processes, written down."""

    def ended(process: RankInfo) -> RankInfo:
        exit_, step = of_pids.get(process.pid, (process.exit, process.last_step))
        return msgspec.structs.replace(process, exit=exit_, last_step=step)

    with _locked(info.path / _LOCK):
        now = _reread(info)
        launcher = None if now.launcher is None else ended(now.launcher)
        ranks = [ended(rank) for rank in now.ranks]
        now = msgspec.structs.replace(now, ranks=ranks, launcher=launcher, closed=True)
        return registry.record_exit(now, how, last_step)


def _spawned(place: Place) -> tuple[RunInfo, RankInfo] | None:
    """Join the run of the process that spawned this one."""
    return _join(Path(place.launcher), place) if place.launcher else None


def _parent(place: Place) -> RankInfo | None:
    """The process that spawned this one, where it is watched."""
    if not place.launcher:
        return None
    with contextlib.suppress(TuimonError):
        info = registry.load(Path(place.launcher))
        return info.launcher or info.ranks[0]
    return None


def _newest(place: Place, environ: Mapping[str, str]) -> tuple[RunInfo, RankInfo] | None:
    """Join the newest run of the job; an older one belongs to an earlier attempt."""
    host = socket.gethostname()
    known = [run for run in registry.list_runs(environ) if run.job == place.job]
    known = [run for run in known if run.host == host]
    return _join(known[-1].path, place) if known else None


def _join(folder: Path, place: Place) -> tuple[RunInfo, RankInfo] | None:
    with _locked(folder / _LOCK) as is_locked:
        try:
            info = registry.load(folder)
        except TuimonError:
            return None
        if not is_locked or not _has_room(info, place):
            return None
        mine = registry.this_process(place.rank, leads=place.leads)
        if info.job:
            ranks = sorted([*info.ranks, mine], key=lambda each: each.rank)
            joined = msgspec.structs.replace(info, ranks=ranks)
        else:  # the launcher's own run, which becomes theirs
            joined = msgspec.structs.replace(
                info,
                ranks=[mine],
                launcher=info.ranks[0],
                job=place.job,
                world_size=place.world_size,
                ranks_here=place.ranks_here,
            )
        try:
            registry.save(joined)
        except NoRoom:
            return None
        return joined, mine


def _has_room(info: RunInfo, place: Place) -> bool:
    """Whether this process may be a rank of the run: its place is free and the others live."""
    if info.closed or info.exit is not None or info.host != socket.gethostname():
        return False
    if not info.job:
        return registry.is_alive(info) and not _has_stepped(info)
    if info.job != place.job or info.world_size != place.world_size:
        return False
    if info.index_of(place.rank) is not None:
        return False
    return place.one_attempt or registry.is_alive(info)


def _has_stepped(info: RunInfo) -> bool:
    """Whether the process that made the run trains by itself."""
    try:
        with contextlib.closing(RingReader(info.ring())) as reader:
            return reader.status().step is not None
    except TuimonError:
        return False


def _reread(info: RunInfo) -> RunInfo:
    try:
        return registry.load(info.path)
    except TuimonError:
        return info


def _crew(info: RunInfo) -> set[tuple[int, int]]:
    return {(process.rank, process.pid) for process in info.processes}


@contextlib.contextmanager
def _door(environ: Mapping[str, str]) -> Iterator[None]:
    """One at a time may look for the run of a job, and make it."""
    root = _first_usable(environ)
    if root is None:
        yield
        return
    with _locked(root / _DOOR):
        yield


def _first_usable(environ: Mapping[str, str]) -> Path | None:
    for root in paths.run_roots(environ):
        with contextlib.suppress(NoRoom):
            return paths.secure_folder(root, chosen=bool(environ.get("TUIMON_DIR")))
    return None


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Hold the lock of `file`; False when it could not be had in time."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(file, flags, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _taken(descriptor)
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    until_s = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until_s:
                return False
            time.sleep(_POLL_S)
        else:
            return True
