"""Opening files in folders of ours: never through a link, never what is no file of this user's.

A run folder belongs to its user alone, so that whatever stands there in place of a file of ours
has been put there by mistake or by malice; it is refused or replaced, never followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_own(path: Path, flags: int) -> int:
    """Open a file that only we write, made with mode 0600 where it is missing; a descriptor.

    Raises:
        OSError: it is a link, no regular file, another user's, or has a second name.
    """
    # Without waiting: a pipe that stands in its place would have to be read by somebody first.
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_nlink > 1:
            raise OSError(errno.EPERM, "it is no file of ours", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def draft_of(path: Path) -> tuple[int, Path]:
    """(descriptor, path) of a new empty file beside `path`, to be renamed over it when whole.

    What stands in the place of the draft, also a link, is removed first and never written through.

    Raises:
        OSError: it cannot be made.
    """
    draft = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    return os.open(draft, flags, 0o600), draft


def replace(path: Path, payload: bytes, *, mode: int = 0o600, synced: bool = False) -> None:
    """Let `path` have this content, whole from its first moment; a link there is replaced.

    Args:
        path: the file.
        payload: its new content.
        mode: of the file.
        synced: whether a crash of the machine may not lose it; takes as long as the disk does.

    Raises:
        OSError: no room or no right to write; what was there stays.
    """
    descriptor, draft = draft_of(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(payload)
            if synced:
                file.flush()
                os.fsync(descriptor)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def put(path: Path, payload: bytes, *, mode: int | None = None) -> None:
    """Write a file that a person has named, as `replace` does: a link there stays.

    Args:
        path: where it belongs; a device such as /dev/null is written to instead.
        payload: its new content.
        mode: of the file; None is that of any new file of this process.

    Raises:
        OSError: it cannot be written, or a link on the way is somebody else's; what was there
            stays.
    """
    if problem := link_problem(path):
        raise OSError(errno.EPERM, problem, str(path))
    target = Path(os.path.realpath(path))
    if target.is_char_device():
        target.write_bytes(payload)
        return
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(target))
    replace(target, payload, mode=_usual_mode() if mode is None else mode, synced=True)


def _usual_mode() -> int:
    umask = os.umask(0o077)  # it can only be asked for by setting it
    os.umask(umask)
    return 0o666 & ~umask


def open_reading(path: Path, *, follows: bool = False) -> BinaryIO:
    """Open a regular file, without waiting for a writer where a pipe stands in its place.

    Args:
        path: the file.
        follows: whether it may be a link; a file in a folder of ours may not.

    Raises:
        OSError: it is no regular file, or cannot be read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


def read_small(path: Path, limit_bytes: int, *, follows: bool = False) -> bytes:
    """The content of a regular file that has at most so many bytes.

    Raises:
        OSError: it is larger, no file, or cannot be read.
    """
    with open_reading(path, follows=follows) as file:
        payload = file.read(limit_bytes + 1)
    if len(payload) > limit_bytes:
        raise OSError(errno.EFBIG, f"it has more than {limit_bytes:,} bytes", str(path))
    return payload


def foreign_link(path: Path) -> Path | None:
    """The first link on the way to `path` that somebody else has put there; None without one.

    One's own links are followed, as everywhere; one of another user, in a folder where everybody
    may write, leads where that user wants.
    """
    trusted = (os.getuid(), 0)
    for place in (*reversed(path.absolute().parents), path.absolute()):
        try:
            found = place.lstat()
        except OSError:
            return None
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in trusted:
            return place
    return None


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those above it; returns those that were not there, the innermost first."""
    above = [folder, *folder.parents]
    made = [each for each in above if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return made


def take_back(made: list[Path]) -> None:
    """Remove folders that were made for what then could not be written; others keep theirs."""
    with contextlib.suppress(OSError):
        for each in made:
            each.rmdir()


def link_problem(path: Path) -> str:
    """Why a path that a person has named is not written to; "" when it may be."""
    link = foreign_link(path)
    return "" if link is None else f"{link} is a link that somebody else has put there"
