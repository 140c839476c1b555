"""Which recordings there are: a folder per host and run below the user's state folder.

They outlive the shared memory of the run. What is too old or too much goes, the oldest first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tuimon.errors import NoSuchRun, Refused
from tuimon.feed import paths, private, registry
from tuimon.feed.recording import run_of
from tuimon.feed.registry import RunInfo
from tuimon.feed.segments import RUN_FILE, SUFFIX

MAX_AGE_S = 30 * 86400.0
KEEP_RUNS = 20
REPORT = "report.json"  # beside the recording, as in the folder of the run
MAX_REPORT_BYTES = 64 << 20


class Kept(msgspec.Struct, frozen=True):
    """A run that was recorded.

    Attributes:
        folder: what `read_recording` takes.
        written_s: unix time of the last change.
    """

    folder: Path
    info: RunInfo
    written_s: float
    size_bytes: int


def recordings_folder() -> Path:
    """Where the recordings of this user lie; it may not exist yet."""
    return paths.state_folder() / "recordings"


def folder_of(info: RunInfo) -> Path:
    """Where a run is recorded."""
    return recordings_folder() / _name_of(info)


def list_recordings() -> list[Kept]:
    """All recordings of this user, of every host that shares the folder, the oldest first."""
    found = []
    with contextlib.suppress(OSError):
        for folder in recordings_folder().iterdir():
            kept = _kept(folder)
            found += [kept] if kept is not None else []
    return sorted(found, key=lambda each: each.info.started_at_s)


def find_recording(token: str | None) -> Path:
    """What `token` names: a run by id, name, pid or beginning of an id; or a file or folder.

    What looks like a path is one. Anything else is a run where one is called that, whatever
    lies in the current folder. Without a token it is the newest recording.

    Raises:
        NoSuchRun: nothing answers to the name.
        Refused: the folder belongs to another user.
    """
    if token and (os.sep in token or token.endswith(SUFFIX)):
        return _given(Path(token))
    kept = list_recordings()
    if token is None:
        if not kept:
            raise NoSuchRun("nothing is recorded yet; `tuimon run SCRIPT` records as it goes")
        return kept[-1].folder
    exact = [each for each in kept if token in (each.info.id, each.info.name, _pid(each.info))]
    if exact:
        return exact[-1].folder
    is_there = bool(token) and _is_there(Path(token))
    if is_there and _holds_some(Path(token)):
        return _given(Path(token))
    begun = [each for each in kept if token and each.info.id.startswith(token)]
    if len(begun) == 1:
        return begun[0].folder
    if begun:
        ids = ", ".join(each.info.id for each in begun[:5])
        raise NoSuchRun(f"{token!r} is the beginning of several recorded runs: {ids}")
    also = f", and none in .{os.sep}{token[:80]}" if is_there else ""
    raise NoSuchRun(f"no recording of {token[:80]!r}{also}; `tuimon replay --list` lists them")


def is_recorded(info: RunInfo) -> bool:
    """Whether something of the run is there to replay."""
    with contextlib.suppress(OSError):
        return any(folder_of(info).glob(f"*{SUFFIX}"))
    return False


def find_run_or_say(token: str | None) -> RunInfo:
    """The run that `registry.find_run` finds, where something of it is left to watch.

    Raises:
        NoSuchRun: it is gone; says whether it can be replayed.
        Refused, IncompatibleVersion: as `registry.find_run`.
    """
    try:
        info = registry.find_run(token)
    except NoSuchRun as error:
        if token is None or os.sep in token:
            raise
        try:
            find_recording(token)
        except NoSuchRun:
            raise error from None
        words = f"run {token[:80]} is gone; `tuimon replay {token[:80]}` shows what was recorded"
        raise NoSuchRun(words) from error
    if not registry.is_alive(info) and not info.path.exists() and is_recorded(info):
        words = f"run {info.id} has ended and its folder is gone; `tuimon replay {info.id}`"
        raise NoSuchRun(f"{words} shows what was recorded")
    return info


def keep_report(info: RunInfo) -> None:
    """Lay a copy of the run's report beside its recording; without one of both nothing is done."""
    with contextlib.suppress(OSError):
        if is_recorded(info):
            payload = private.read_small(info.path / REPORT, MAX_REPORT_BYTES)
            private.replace(folder_of(info) / REPORT, payload)


def sweep(
    now_s: float,
    *,
    max_age_s: float = MAX_AGE_S,
    keep_runs: int = KEEP_RUNS,
    but: str = "",
    environ: Mapping[str, str] = os.environ,
) -> list[str]:
    """Delete recordings of ended runs that are too old or beyond so many; returns their ids.

    Args:
        but: id of a run that is kept in any case.
        environ: says where running trainings are found.
    """
    alive = {info.id for info in registry.list_runs(environ) if registry.is_alive(info)} | {but}
    swept = []
    newest_first = sorted(list_recordings(), key=lambda each: each.written_s, reverse=True)
    for place, kept in enumerate(newest_first):
        if kept.info.id in alive:
            continue
        if place < keep_runs and now_s - kept.written_s <= max_age_s:
            continue
        shutil.rmtree(kept.folder, ignore_errors=True)
        swept.append(kept.info.id)
    return swept


def _kept(folder: Path) -> Kept | None:
    info = run_of(folder)
    # A folder that says it is another one's has been put there; it is neither read nor deleted.
    if info is None or folder.is_symlink() or folder.name != _name_of(info):
        return None
    size_bytes, written_s = 0, 0.0
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            found = file.lstat()
            size_bytes += found.st_size
            if file.suffix == SUFFIX or file.name == RUN_FILE:
                written_s = max(written_s, found.st_mtime)
    return Kept(folder, info, written_s, size_bytes)


def _is_there(path: Path) -> bool:
    """Whether there is a file; a name that no file can have is none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _holds_some(path: Path) -> bool:
    """Whether a path may be meant by its name alone: a file, or a folder with a recording."""
    with contextlib.suppress(OSError):
        return not path.is_dir() or any(path.glob(f"*{SUFFIX}"))
    return True  # what is wrong with it is said where it is read


def _given(path: Path) -> Path:
    try:
        found = path.stat()
    except OSError as error:
        raise NoSuchRun(f"cannot read {path}: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode) and found.st_uid != os.getuid():
        raise Refused(f"{path} belongs to user {found.st_uid}; only that user may look at it")
    return path


def _pid(info: RunInfo) -> str:
    return "" if info.main_pid is None else str(info.main_pid)


def _name_of(info: RunInfo) -> str:
    return f"{info.host}-{info.id}"
