"""Starts the scribe: a separate process that owes the training nothing and leaves no child."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tuimon.errors import TuimonError
from tuimon.feed import private, registry
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model.records import ENDED

START_LIMIT_S = 20.0  # a cold import on a busy shared file system

# One thread each: the scribe's numpy must not take cores from the training.
_SINGLE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def wants_scribe(environ: Mapping[str, str] = os.environ) -> bool:
    """False when the user opted out with `TUIMON_SCRIBE=0`."""
    return environ.get("TUIMON_SCRIBE", "1") != "0"


def start_scribe(info: RunInfo, environ: Mapping[str, str] = os.environ) -> str:
    """Start the scribe of a run and wait until its first process has handed over to its child.

    Returns why there is no scribe, "" when there is one. Never raises.
    """
    child_environ = {**environ, **dict.fromkeys(_SINGLE_THREAD, "1")}
    child_environ.pop("PYTHONSTARTUP", None)
    log = info.path / "scribe.log"
    try:
        fd = private.open_own(log, os.O_WRONLY | os.O_APPEND)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tuimon.scribe", info.folder],
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                close_fds=True,
                start_new_session=True,
                env=child_environ,
                cwd="/",
            )
        finally:
            os.close(fd)
        code = process.wait(START_LIMIT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        return f"it did not start within {START_LIMIT_S:g} s"
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror}"
    return "" if code == 0 else f"it ended with code {code}; see {log}"


def leaves_last(folder: Path) -> bool:
    """Whether this is the process that leaves its run last on this host: exactly one is told so.

    Each says its goodbye before it asks, so that the last one finds nobody at work.
    """
    try:
        info = registry.load(folder)
    except TuimonError:
        return True
    others = [each for each in info.processes if each.pid != os.getpid()]
    if any(registry.rank_is_alive(each) and not _has_left(folder, each) for each in others):
        return False
    if others:
        with contextlib.suppress(OSError):
            os.close(os.open(folder / "left", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return True
    return not others


def _has_left(folder: Path, process: RankInfo) -> bool:
    """Whether a process has said goodbye; some of its `atexit` functions may still run."""
    try:
        with contextlib.closing(RingReader(folder / process.ring)) as reader:
            return reader.status().state == ENDED
    except TuimonError:
        return False
