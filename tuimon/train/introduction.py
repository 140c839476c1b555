"""Who a process is that begins to publish: the first record of its ring. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from importlib import metadata

import tuimon
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.model.records import FORMAT_VERSION, Hello

CAPABILITIES = ["pause", "step", "clip", "dump", "stop", "hold", "skip", "autopsy"]
CAPABILITIES += ["breakpoint", "inspect", "undo"]


def introduction(info: RunInfo, me: RankInfo) -> Hello:
    """The first record of this process."""
    return Hello(
        format_version=FORMAT_VERSION,
        run_id=info.id,
        name=info.name,
        host=socket.gethostname(),
        pid=os.getpid(),
        rank=me.rank,
        world_size=info.world_size,
        started_at_s=info.started_at_s,
        argv=info.argv,
        versions=info.versions,
        capabilities=CAPABILITIES,
        total_steps=info.total_steps,
    )


def versions() -> dict[str, str]:
    """Of tuimon, Python and torch, which may not have been imported yet."""
    known = {"tuimon": tuimon.__version__, "python": platform.python_version()}
    torch = sys.modules.get("torch")
    found = getattr(torch, "__version__", None)
    if found is None:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = metadata.version("torch")
    if found is not None:
        known["torch"] = str(found)
    return known
