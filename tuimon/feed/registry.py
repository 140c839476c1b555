"""Which runs there are: their folders, their mirror, and whether their processes still live.

A run folder is made by the trainer; its `run.json` is mirrored in the user's state folder, keyed
by host and id, so that every shell finds it. Both files are replaced atomically.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tuimon.errors import IncompatibleVersion, NoRoom, NoSuchRun, Refused, TuimonError
from tuimon.feed import paths, private
from tuimon.feed.process import start_ticks
from tuimon.model.records import FORMAT_VERSION

KEEP_DEAD_S = 24 * 3600.0
KEEP_DEAD_RUNS = 20
MAX_RUN_BYTES = 8 << 20  # of a `run.json`: a command line has at most 2 MiB


class ExitInfo(msgspec.Struct, frozen=True):
    """How a run, or one process of it, ended, as the scribe could tell."""

    kind: str  # "ok" | "exception" | "killed" | "stopped"
    code: int | None = None
    detail: str = ""


class RankInfo(msgspec.Struct, frozen=True):
    """One process of a run; pid and start time together are unique on its host.

    Attributes:
        leads: whether it answers for the run on its host: it owns the control socket.
    """

    rank: int
    pid: int
    start_ticks: int
    ring: str  # file name in the run folder
    host: str = ""
    leads: bool = True
    exit: ExitInfo | None = None
    last_step: int | None = None


class RunInfo(msgspec.Struct, frozen=True):
    """The content of `run.json`.

    Attributes:
        ranks: the processes that train, by rank: those that have come so far.
        job: what their training is known by on this host; "" for a process that is alone.
        ranks_here: how many ranks will come on this host; 0 where nobody has said so.
        launcher: the process that spawned the ranks, where it made the run and trains nothing.
        parent: the watched process that spawned this one, where that is a run of its own.
        closed: nobody joins any more.
        total_steps: how many updates it will make, where who started it has said so.
    """

    id: str
    name: str
    host: str
    uid: int
    folder: str
    argv: list[str] = []
    cwd: str = ""
    started_at_s: float = 0.0  # unix time
    ranks: list[RankInfo] = []
    world_size: int = 1
    versions: dict[str, str] = {}
    format_version: int = FORMAT_VERSION
    report: str | None = None
    environ: dict[str, str] = {}  # only CUDA_VISIBLE_DEVICES, for the readings
    exit: ExitInfo | None = None
    last_step: int | None = None
    parent_pid: int = 0  # of the process that started this one
    job: str = ""
    ranks_here: int = 0
    launcher: RankInfo | None = None
    closed: bool = False
    total_steps: int | None = None
    parent: RankInfo | None = None

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder)

    @property
    def control(self) -> Path:
        """The control socket."""
        return self.path / "control.sock"

    @property
    def processes(self) -> list[RankInfo]:
        """Everybody who writes a ring: the ranks, and who spawned them."""
        return [*self.ranks, *([self.launcher] if self.launcher else [])]

    @property
    def main_pid(self) -> int | None:
        """Pid of the process that a person started; of the lowest rank where several were."""
        first = self.launcher or (self.ranks[0] if self.ranks else None)
        return first.pid if first else None

    def ring(self, index: int = 0) -> Path:
        """The ring of the process at this place in `ranks`."""
        return self.path / self.ranks[index].ring

    def history(self, index: int = 0) -> Path:
        """The thinned history of the process at this place in `ranks`."""
        return self.path / (f"history-{self.ranks[index].pid}.bin" if index else "history.bin")

    def index_of(self, rank: int) -> int | None:
        """The place of a rank in `ranks`; None where it has not come, or runs elsewhere."""
        return next((i for i, each in enumerate(self.ranks) if each.rank == rank), None)

    @property
    def scribe_ring(self) -> Path:
        """The ring that the scribe writes."""
        return self.path / "scribe.ring"

    @property
    def output(self) -> Path:
        """What the training writes where it runs in the background."""
        return self.path / "output.log"


def create_run(
    *,
    name: str,
    argv: list[str],
    versions: dict[str, str] | None = None,
    world_size: int = 1,
    rank: int = 0,
    report: str | None = None,
    job: str = "",
    ranks_here: int = 0,
    leads: bool = True,
    total_steps: int | None = None,
    parent: RankInfo | None = None,
    environ: Mapping[str, str] = os.environ,
) -> RunInfo:
    """Make the folder of a new run for the calling process and write its `run.json`.

    Raises:
        NoRoom: no candidate folder can hold a run; the message names the last reason.
    """
    run_id = os.urandom(4).hex()
    folder = _new_folder(run_id, environ)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    info = RunInfo(
        id=run_id,
        name=name[:200] or "python",
        host=socket.gethostname(),
        uid=os.getuid(),
        folder=str(folder),
        argv=argv,
        cwd=_cwd(),
        started_at_s=time.time(),
        ranks=[this_process(rank, leads=leads)],
        world_size=world_size,
        versions=versions or {},
        report=report,
        environ={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible},
        parent_pid=os.getppid(),
        job=job,
        ranks_here=ranks_here,
        total_steps=total_steps,
        parent=parent,
    )
    save(info)
    return info


def this_process(rank: int, *, leads: bool) -> RankInfo:
    """The calling process as a rank."""
    pid = os.getpid()
    ticks = start_ticks(pid) or 0
    return RankInfo(rank, pid, ticks, f"{pid}.ring", host=socket.gethostname(), leads=leads)


def save(info: RunInfo) -> None:
    """Write `run.json` in the folder, and its mirror where the state folder allows it."""
    payload = msgspec.json.encode(info)
    try:
        private.replace(info.path / "run.json", payload)
    except OSError as error:
        raise NoRoom(f"cannot write in {info.folder}: {error.strerror}") from error
    mirror_to_state(info)


def mirror_to_state(info: RunInfo) -> None:
    """Write the mirror alone; a state folder that cannot be written is not an error."""
    mirror = _mirror_folder()
    with contextlib.suppress(OSError):
        mirror.mkdir(mode=0o700, parents=True, exist_ok=True)
        private.replace(mirror / f"{info.host}-{info.id}.json", msgspec.json.encode(info))


def record_exit(info: RunInfo, how: ExitInfo, last_step: int | None) -> RunInfo:
    """The run with its end written down, in the folder and in the mirror."""
    ended = msgspec.structs.replace(info, exit=how, last_step=last_step)
    with contextlib.suppress(NoRoom):
        save(ended)
    mirror_to_state(ended)
    return ended


def withdraw(info: RunInfo) -> None:
    """Delete a run that nobody trains in; what cannot be deleted stays."""
    if _is_a_folder_of(info):
        shutil.rmtree(info.path, ignore_errors=True)
    with contextlib.suppress(OSError):
        (_mirror_folder() / f"{info.host}-{info.id}.json").unlink()


def load(folder: Path) -> RunInfo:
    """The run in `folder`.

    Raises:
        NoSuchRun: no readable `run.json`.
        Refused: it belongs to another user.
        IncompatibleVersion: written by another format version.
    """
    file = folder / "run.json"
    try:
        owner = folder.stat().st_uid
        if owner != os.getuid():
            raise Refused(f"{folder} belongs to user {owner}; only that user may look at it")
        payload = private.read_small(file, MAX_RUN_BYTES)
    except FileNotFoundError as error:
        raise NoSuchRun(f"no run in {folder}") from error
    except PermissionError as error:
        raise Refused(f"{folder} may be read by its owner only") from error
    except OSError as error:
        raise NoSuchRun(f"cannot read {file}: {error.strerror}") from error
    return _parse(payload, file)


def list_runs(environ: Mapping[str, str] = os.environ) -> list[RunInfo]:
    """All runs of this user on this host, dead ones too, oldest first; unreadable ones left out."""
    found: dict[str, RunInfo] = {}
    host = socket.gethostname()
    for file in _files(_mirror_folder(), f"{host}-*.json"):
        with contextlib.suppress(OSError, NoSuchRun, IncompatibleVersion):
            info = _parse(private.read_small(file, MAX_RUN_BYTES), file)
            found[info.id] = info
    for root in paths.run_roots(environ):
        for file in _files(root, "*/run.json"):
            with contextlib.suppress(NoSuchRun, Refused, IncompatibleVersion):
                info = load(file.parent)
                found[info.id] = info
    return sorted(found.values(), key=lambda run: run.started_at_s)


def find_run(token: str | None, environ: Mapping[str, str] = os.environ) -> RunInfo:
    """The run that `token` names: id, beginning of an id, name, pid or folder.

    Without a token: the newest live run, else the newest one.

    Raises:
        NoSuchRun, Refused, IncompatibleVersion: as their messages say.
    """
    runs = list_runs(environ)
    if token and os.sep in token and all(token != run.name for run in runs):
        return load(Path(token))
    if token is None:
        if not runs:
            raise NoSuchRun("no run on this host; start one with `tuimon run SCRIPT`")
        return max(runs, key=lambda run: (is_alive(run), run.started_at_s))
    exact = [run for run in runs if token in (run.id, run.name) or _has_pid(run, token)]
    if exact:
        return max(exact, key=lambda run: (is_alive(run), run.started_at_s))
    begun = [run for run in runs if run.id.startswith(token)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        ids = ", ".join(run.id for run in begun[:5])
        raise NoSuchRun(f"{token!r} is the beginning of several runs: {ids}")
    _explain_missing(token, environ)
    raise NoSuchRun(f"no run {token[:80]!r} on this host; `tuimon ls` lists the runs")


def _has_pid(run: RunInfo, token: str) -> bool:
    return any(token == str(process.pid) for process in run.processes)


def rank_is_alive(rank: RankInfo) -> bool:
    """Whether the very process still exists: same pid and same start time, and not a zombie."""
    return start_ticks(rank.pid) == rank.start_ticks


def is_alive(info: RunInfo) -> bool:
    """Whether any process of the run still exists on this host."""
    return is_here(info) and any(map(rank_is_alive, info.processes))


def lost_spawner(info: RunInfo) -> int:
    """Pid of the process that spawned this run or its ranks, where that is gone; else 0."""
    spawner = info.launcher or info.parent
    is_lost = spawner is not None and is_here(info) and not rank_is_alive(spawner)
    return spawner.pid if spawner is not None and is_lost else 0


def is_here(info: RunInfo) -> bool:
    """Whether it is a run of this host."""
    return info.host == socket.gethostname()


def sweep(now_s: float, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Delete dead runs that are older than a day or beyond the 20 newest; returns their ids."""
    dead = [run for run in list_runs(environ) if not is_alive(run)]
    dead.sort(key=lambda run: run.started_at_s, reverse=True)
    swept = []
    for rank, info in enumerate(dead):
        if rank < KEEP_DEAD_RUNS and now_s - info.started_at_s < KEEP_DEAD_S:
            continue
        if _is_a_folder_of(info):
            shutil.rmtree(info.path, ignore_errors=True)
        (_mirror_folder() / f"{info.host}-{info.id}.json").unlink(missing_ok=True)
        swept.append(info.id)
    return swept


def _new_folder(run_id: str, environ: Mapping[str, str]) -> Path:
    reason = "no candidate folder"
    for root in paths.run_roots(environ):
        try:
            paths.secure_folder(root, chosen=bool(environ.get("TUIMON_DIR")))
            if not paths.is_local(root):
                kind = paths.file_system(root)
                raise NoRoom(f"{root} is on {kind}, which cannot share memory; set TUIMON_DIR")
            paths.ring_bytes(root)
            return paths.secure_folder(root / run_id)
        except NoRoom as error:
            reason = str(error)
    raise NoRoom(reason)


def _explain_missing(token: str, environ: Mapping[str, str]) -> None:
    """Raise what is wrong with a run whose folder is there but was left out of the list."""
    for root in paths.run_roots(environ):
        folder = root / token
        try:
            is_there = folder.is_dir()
        except PermissionError as error:
            raise Refused(f"{root} may be read by its owner only") from error
        except OSError:
            continue
        if is_there:
            load(folder)


def _parse(payload: bytes, file: Path) -> RunInfo:
    try:
        info = msgspec.json.decode(payload, type=RunInfo)
    except msgspec.DecodeError as error:
        raise NoSuchRun(f"{file} is damaged") from error
    if info.format_version != FORMAT_VERSION:
        raise IncompatibleVersion(
            f"run {info.id} has format {info.format_version}, this tuimon reads {FORMAT_VERSION}; "
            "use the tuimon that the training uses"
        )
    return info


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _is_a_folder_of(info: RunInfo) -> bool:
    """Whether the folder that a run names says so itself: what a mirror says is not enough."""
    if info.path.name != info.id or info.uid != os.getuid():
        return False
    try:
        return load(info.path).id == info.id
    except TuimonError:
        return False


def _mirror_folder() -> Path:
    return paths.state_folder() / "runs"


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
