"""Which rank of which job this process is, by its process group or by its launcher. No torch.

What two ranks know their job by must be the same on one host and of nobody else: the agent of
torchrun and its attempt, the address that the launcher has told, or the store of the process group.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from tuimon.feed.jobs import Place
from tuimon.feed.process import start_ticks


def find_place(
    environ: Mapping[str, str] = os.environ, argv: list[str] | None = None, launcher: str = ""
) -> Place:
    """The place of this process, as far as anybody can tell now.

    Args:
        environ: as its launcher has set it.
        argv: of the script, which all ranks of a job have in common.
        launcher: folder of the run of the watched process that spawned this one.
    """
    told = None if _is_spawned() else _told(environ, argv or [""])
    joined = _process_group()
    if joined is None:
        return told or Place(launcher=launcher)
    rank, size, store = joined
    if told is not None and told.one_attempt and told.rank == rank:
        return told
    job = _key("store", launcher, size, store) if store else ""
    leads = rank == 0 if told is None or told.rank != rank else told.leads
    return Place(rank, size, job, leads=leads, launcher=launcher)


def launched_rank(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """(rank, world size) as the process group says, or as a launcher tells its children."""
    place = find_place(environ)
    return place.rank, place.world_size


def _told(environ: Mapping[str, str], argv: list[str]) -> Place | None:
    """What a launcher says in the environment; None where it says nothing of several ranks."""
    size, rank = _number(environ.get("WORLD_SIZE")), _number(environ.get("RANK"))
    if size is None or rank is None or size < 2 or rank >= size:
        return None
    local = _number(environ.get("LOCAL_RANK"))
    here = _number(environ.get("LOCAL_WORLD_SIZE")) or 0
    address = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    run, attempt = environ.get("TORCHELASTIC_RUN_ID"), environ.get("TORCHELASTIC_RESTART_COUNT")
    job = ""
    if run is not None:
        # Ids repeat ("none", a job's name); the agent that started this attempt does not.
        agent = os.getppid()
        job = _key("elastic", run, attempt, size, *address, agent, start_ticks(agent))
    elif address[1]:
        job = _key("address", *address, size, argv[0], _folder())
    return Place(
        rank,
        size,
        job,
        leads=rank == 0 if local is None else local == 0,
        ranks_here=here,
        one_attempt=run is not None,
    )


def _process_group() -> tuple[int, int, str] | None:
    """(rank, world size, what names the store); None outside of a group of several."""
    distributed: Any = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_initialized():
            size = distributed.get_world_size()
            if size > 1:
                return distributed.get_rank(), size, _store(distributed)
    return None


def _store(distributed: Any) -> str:
    """Where the ranks of the process group meet; "" where that names nothing."""
    store = distributed.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    parts = [str(getattr(store, name, "")) for name in ("host", "port", "path")]
    return "|".join((type(store).__name__, *parts)) if any(parts) else ""


def _is_spawned() -> bool:
    """Whether `multiprocessing` made this process: what its parent was told does not hold here."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _key(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:24]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
