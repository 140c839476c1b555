"""Whether processes of a run still exist: by pid and start time, the scribe by its lock."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import zlib
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot (Linux); None when there is no such live process.

    A zombie counts as gone. Elsewhere the figure is a checksum of what `ps` prints.
    """
    if sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            return None
        # proc(5): field 3 is the state, field 22 the start time; two fields are cut off.
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    answer = subprocess.run(
        ["ps", "-o", "lstart=,stat=", "-p", str(pid)], capture_output=True, check=False
    ).stdout
    *started, state = answer.split() or [b"Z"]
    return None if state.startswith(b"Z") else zlib.crc32(b" ".join(started))


def scribe_has_left(folder: Path) -> bool:
    """Whether the run in `folder` had a scribe and has none any more.

    A scribe holds a lock on `scribe.pid` as long as it lives; one that is still starting has not
    written the file yet.
    """
    try:
        with open(folder / "scribe.pid", "rb") as file:
            if not file.read(1):
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
