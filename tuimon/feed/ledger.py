"""The ledger's files: one in the run folder, one beside the run's mirror, which outlives it.

The scribe is the only writer. What a line says is `model.ledger`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from tuimon.errors import TuimonError, UsageError
from tuimon.feed import paths, private, recordings, registry
from tuimon.feed.registry import RunInfo
from tuimon.model import ledger as lines
from tuimon.model.ledger import Kept, Ledger, NotALedger
from tuimon.model.records import CommandState
from tuimon.model.text import plain

FILE = "ledger.jsonl"
MAX_BYTES = 8 << 20  # of one ledger; some 20,000 lines
KEEP_RUNS = 200  # ledgers of ended runs in the state folder
_SUFFIX = f".{FILE}"


def places(info: RunInfo) -> list[Path]:
    """Where the ledger of a run is written, the one that outlives the run folder last."""
    return [info.path / FILE, mirror_folder() / f"{info.host}-{info.id}{_SUFFIX}"]


def mirror_folder() -> Path:
    """The folder of the runs' mirrors; it may not exist yet."""
    return paths.state_folder() / "runs"


class LedgerFiles:
    """Appends a line for each stage of each request. Belongs to the scribe's only thread.

    Attributes:
        problem: why the newest lines are not on the disk; "" while they are.
    """

    def __init__(self, info: RunInfo) -> None:
        self.problem = ""
        self._info = info
        self._waiting: list[bytes] = []
        self._files: list[tuple[Path, int]] = []
        self._is_open = False
        self._written = 0

    def add(self, state: CommandState) -> None:
        """Note one stage; it is on the disk after the next `flush`."""
        line = lines.line_bytes(state)
        if self._written + len(line) > MAX_BYTES:
            self.problem = f"the ledger is full: it ends after {MAX_BYTES >> 20} MiB"
            return
        self._written += len(line)
        self._waiting.append(line)

    def end(self) -> None:
        """Nothing comes any more: whoever reads the ledger will know that it is complete."""
        if self._is_open and not self.problem:
            self._waiting.append(lines.end_bytes())
        self.flush()

    def flush(self) -> None:
        """Bring what was added to the disk. Never raises."""
        if not self._waiting:
            return
        if not self._is_open:
            self._open()
        payload, self._waiting = b"".join(self._waiting), []
        for path, descriptor in list(self._files):
            self._append(path, descriptor, payload)

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        self.flush()
        for _, descriptor in self._files:
            os.close(descriptor)
        self._files = []

    def _open(self) -> None:
        self._is_open = True
        info = self._info
        head = lines.head_bytes(
            run=info.id,
            name=info.name,
            host=info.host,
            argv=info.argv,
            started_at_s=info.started_at_s,
        )
        own, mirror = places(info)
        with contextlib.suppress(OSError):
            mirror.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (own, mirror):
            try:
                descriptor = private.open_own(path, os.O_WRONLY | os.O_APPEND)
            except OSError as error:
                self._give_up(path, error)
                continue
            self._files.append((path, descriptor))
            if os.fstat(descriptor).st_size == 0:
                self._append(path, descriptor, head)

    def _append(self, path: Path, descriptor: int, payload: bytes) -> None:
        """All of it, or nothing: a piece of a line would spoil the one that follows."""
        size = os.fstat(descriptor).st_size
        try:
            view = memoryview(payload)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError as error:
            self._give_up(path, error)
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            os.close(descriptor)
            self._files.remove((path, descriptor))

    def _give_up(self, path: Path, error: OSError) -> None:
        self.problem = f"the ledger cannot be written to {path}: {error.strerror}"


def kept_of(info: RunInfo) -> Kept | None:
    """What the ledger of a run says, by the file that has more of it; None where there is none."""
    found = [kept for place in places(info) if (kept := _kept_at(place)) is not None]
    return max(found, key=lambda each: (each.is_closed, len(each.states)), default=None)


def kept_of_swept(token: str) -> Kept | None:
    """The same for a run of which nothing but its ledger is left; None where that is gone too."""
    place = _kept_by_id(token) or _kept_by_name(token)
    return None if place is None else _kept_at(place)


def _kept_at(place: Path) -> Kept | None:
    try:
        return lines.kept_in(private.read_small(place, MAX_BYTES + lines.MAX_LINE_BYTES))
    except OSError:
        return None


def _of_run(token: str) -> Path | None:
    """The ledger of the run that a person names; None where nothing is known of such a run.

    Raises:
        UsageError: there is such a run, and it was told nothing.
    """
    info: RunInfo | None = None
    with contextlib.suppress(TuimonError):
        info = registry.find_run(token)
    if info is None:
        if (place := _kept_by_id(token)) is not None:
            return place
        recorded = [each.info for each in recordings.list_recordings() if each.info.name == token]
        if not recorded:
            return _kept_by_name(token)
        info = recorded[-1]
    found = next((place for place in places(info) if place.exists()), None)
    if found is None:
        raise UsageError(f"run {plain(info.id)} was told nothing, there is nothing to repeat of it")
    return found


def _kept_by_name(name: str) -> Path | None:
    """The newest ledger in the state folder of a run of this name."""
    for path in sorted(mirror_folder().glob(f"*{_SUFFIX}"), key=_changed_s, reverse=True):
        with contextlib.suppress(OSError, NotALedger), private.open_reading(path) as file:
            if name and lines.head_of(file.readline(lines.MAX_LINE_BYTES)).name == name:
                return path
    return None


def _kept_by_id(token: str) -> Path | None:
    """The ledger in the state folder of the run with this id, or with an id that begins so."""
    if not token or not token.isalnum():
        return None
    found = [
        path
        for path in mirror_folder().glob(f"*-{token}*{_SUFFIX}")
        if path.name.removesuffix(_SUFFIX).rpartition("-")[2].startswith(token)
    ]
    return found[0] if len(found) == 1 else None


def read_ledger(wanted: str) -> tuple[Path, Ledger]:
    """The ledger that a person names, by its file or by its run, and where it lies.

    Raises:
        UsageError: it is not there, not this user's, or no ledger that can be used.
    """
    path = Path(wanted)
    if os.sep not in wanted and (path.is_dir() or not path.exists()):
        path = _of_run(wanted) or path
    shown = plain(str(path), 200)
    try:
        found = path.stat()
        if found.st_uid not in (os.getuid(), 0):
            raise UsageError(f"the ledger {shown} belongs to another user; copy it first")
        if found.st_mode & stat.S_IWOTH:
            raise UsageError(f"anybody may write to the ledger {shown}; copy it first")
        return path.absolute(), lines.parse(private.read_small(path, MAX_BYTES * 2, follows=True))
    except FileNotFoundError:
        missing = "it is neither a file nor a run whose ledger was kept"
        raise UsageError(f"no ledger {shown}: {missing}") from None
    except OSError as error:
        raise UsageError(f"the ledger {shown} cannot be read: {error.strerror}") from error
    except NotALedger as error:
        raise UsageError(f"{shown} is no ledger that can be applied: {error}") from error


def sweep() -> None:
    """Delete the oldest ledgers beyond those that are kept. Never raises."""
    with contextlib.suppress(OSError):
        found = sorted(mirror_folder().glob(f"*{_SUFFIX}"), key=_changed_s, reverse=True)
        for path in found[KEEP_RUNS:]:
            path.unlink(missing_ok=True)


def _changed_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
