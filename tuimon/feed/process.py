"""When a process started, which together with its pid tells it from a later one of the same pid."""

from __future__ import annotations

import subprocess
import sys
import zlib


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
