"""How the scribe leaves the training: no child of it, no terminal, no open file, low priority."""

from __future__ import annotations

import contextlib
import os
import signal

NICENESS = 5  # the training comes first
_IGNORED = ("SIGHUP", "SIGTERM", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGXFSZ")
_MAX_OPEN_FILES = 4096  # far more than a process that has just started can have inherited


def detach(log: str) -> int | None:
    """Fork twice; None in the process that was started, the old umask in the grandchild.

    The grandchild leads no session, is no child of the training, writes to `log`, and outlives
    the signals that end a terminal or a batch job, so that the report is still written.
    """
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return None
    os.setsid()
    if os.fork():
        os._exit(0)
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    user_umask = os.umask(0o077)
    os.chdir("/")
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    _redirect(log)
    return user_umask


def _redirect(log: str) -> None:
    # An inherited pipe that stayed open would keep its reader, such as `| tee`, waiting.
    os.closerange(3, _MAX_OPEN_FILES)
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        target = os.open(log, flags, 0o600)
    except OSError:
        target = nothing
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.closerange(3, _MAX_OPEN_FILES)
