"""Where run folders and their mirror lie, and whether a folder may hold a ring.

Both programs walk the same candidates in the same order, so a login shell finds what a batch
job published.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tuimon.errors import NoRoom

ROOMY_BYTES = 32 << 20  # half of the 64 MiB that containers give /dev/shm by default
MIN_RING_BYTES = 1 << 20
MAX_RING_BYTES = 16 << 20
RING_SHARE_OF_FREE = 0.05

# mmap with shared writes is unsupported or incoherent there.
NETWORK_FILE_SYSTEMS = frozenset(
    """nfs nfs4 cifs smb3 smbfs lustre gpfs ceph 9p beegfs afs glusterfs pvfs2 orangefs
    fuse.sshfs fuse.glusterfs fuse.s3fs fuse.gcsfuse""".split()  # noqa: SIM905
)


def run_roots(environ: Mapping[str, str]) -> list[Path]:
    """Folders that may hold run folders, the first usable one wins.

    `TUIMON_DIR` is the user's explicit choice and has no fall-back.
    """
    if chosen := environ.get("TUIMON_DIR"):
        return [Path(chosen).absolute()]
    uid = os.getuid()
    roots = []
    if sys.platform == "linux":
        roots.append(Path(f"/dev/shm/tuimon-{uid}"))
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        roots.append(Path(runtime) / "tuimon")
    roots.append(Path(tempfile.gettempdir()) / f"tuimon-{uid}")
    return roots


def state_folder() -> Path:
    """The user's state folder of tuimon; it may not exist yet."""
    from platformdirs import user_state_path

    return user_state_path("tuimon", appauthor=False)


def secure_folder(folder: Path, *, chosen: bool = False) -> Path:
    """Create `folder` with mode 0700, or check that an existing one is ours and make it private.

    One that the user has `chosen` may hold other things and serve other people: it keeps its mode;
    it may also be a link of theirs to a folder of theirs that nobody else may write to.

    Raises:
        NoRoom: it cannot be created, it belongs to somebody else, or, where its mode stays,
            anybody could exchange what lies in it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        why = "it is a link that leads nowhere" if folder.is_symlink() else error.strerror
        if folder.exists():
            why = "it is not a folder"
        raise NoRoom(f"cannot create {folder}: {why}; set TUIMON_DIR") from error
    if stat.S_ISLNK(found.st_mode):
        found = _behind_link(folder, found, chosen=chosen)
    if found.st_uid != os.getuid():
        raise NoRoom(f"{folder} belongs to somebody else; set TUIMON_DIR to a folder of yours")
    if chosen:
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise NoRoom(f"anybody may write to {folder}; set TUIMON_DIR to a folder of yours")
    elif found.st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except OSError as error:
            raise NoRoom(f"cannot make {folder} private: {error.strerror}") from error
    return folder


def _behind_link(folder: Path, link: os.stat_result, *, chosen: bool) -> os.stat_result:
    """What a link leads to, which whoever owns the link or the folder could exchange."""
    if not chosen:
        raise NoRoom(f"{folder} is a link; remove it, or set TUIMON_DIR to a folder of yours")
    if link.st_uid not in (os.getuid(), 0):
        raise NoRoom(f"the link {folder} belongs to somebody else; set TUIMON_DIR to a folder")
    try:
        found = folder.stat()
    except OSError as error:
        raise NoRoom(f"cannot follow {folder}: {error.strerror}; set TUIMON_DIR") from error
    if found.st_uid == os.getuid() and found.st_mode & 0o022:
        raise NoRoom(f"others may write to the folder that {folder} leads to; set TUIMON_DIR")
    return found


def free_bytes(folder: Path) -> int:
    """Bytes that an unprivileged user may still write there; 0 when it cannot be told.

    The folder need not be there yet.
    """
    place = folder.absolute()
    try:
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free
    except OSError:
        return 0


def ring_bytes(folder: Path, local_ranks: int = 1) -> int:
    """Size of a ring in `folder`: 5 % of the free space per rank, 1 to 16 MiB, whole KiB.

    Raises:
        NoRoom: less than the smallest ring is free.
    """
    free = free_bytes(folder)
    if free < MIN_RING_BYTES * 2 * local_ranks:
        raise NoRoom(f"only {free >> 10} KiB are free in {folder}; set TUIMON_DIR")
    wanted = int(free * RING_SHARE_OF_FREE / local_ranks)
    return max(MIN_RING_BYTES, min(MAX_RING_BYTES, wanted)) & ~1023


def file_system(folder: Path, mountinfo: str = "/proc/self/mountinfo") -> str:
    """Name of the file system that holds `folder`; "" where the system does not tell."""
    try:
        target = os.path.realpath(folder)
        with open(mountinfo, encoding="utf-8", errors="replace") as lines:
            mounts = [_mount(line) for line in lines]
    except OSError:
        return ""
    best = ("", "")
    for point, kind in mounts:
        prefix = point.rstrip("/") + "/"
        if (target + "/").startswith(prefix) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def is_local(folder: Path) -> bool:
    """Whether shared memory maps of files there are coherent on this host."""
    return file_system(folder) not in NETWORK_FILE_SYSTEMS


def _mount(line: str) -> tuple[str, str]:
    """(mount point, file system) of a line of mountinfo; see proc(5)."""
    before, _, after = line.partition(" - ")
    point = before.split(" ")[4].replace("\\040", " ")
    return point, after.split(" ")[0]
