"""What reaches out of the modules cannot be taken back: in a second run it is refused.

Files, sockets, other processes and other threads are met by a few functions of Python's; while
user code is run again in this thread, those refuse. Other threads use them as ever.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from tuimon.train.autopsy.putback import CannotKeep

_Condition = Callable[[tuple[Any, ...], dict[str, Any]], bool]
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ReachesOut(CannotKeep):
    """The second run would do something that is felt outside."""


def _always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def _opens_to_write(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
    return not isinstance(mode, str) or not set("wxa+").isdisjoint(mode)


def _opens_raw_to_write(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    flags = args[1] if len(args) > 1 else kwargs.get("flags", 0)
    return not isinstance(flags, int) or bool(flags & _WRITING)


def _saves_to_path(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    target = args[1] if len(args) > 1 else kwargs.get("f")
    return isinstance(target, str | os.PathLike)


_FILES = "a file would be written"
_NETWORK = "something would be sent or received"
_PROCESSES = "another process would be started, asked or waited for"
_THREADS = "another thread would be started, told something or waited for"
# (module, class or "", names, when, what for)
_REFUSED: tuple[tuple[str, str, str, _Condition, str], ...] = (
    ("builtins", "", "open", _opens_to_write, _FILES),
    ("io", "", "open", _opens_to_write, _FILES),
    ("os", "", "open", _opens_raw_to_write, _FILES),
    ("os", "", "remove unlink rename replace mkdir rmdir truncate ftruncate link symlink",
     _always, _FILES),
    ("os", "", "write writev pwrite pwritev sendfile", _always, _FILES),
    ("torch", "", "save", _saves_to_path, _FILES),
    ("torch.serialization", "", "save", _saves_to_path, _FILES),
    ("builtins", "", "input", _always, "somebody would be asked"),
    ("socket", "socket",
     "connect connect_ex bind listen accept send sendall sendto sendmsg sendfile"
     " recv recv_into recvfrom recvfrom_into recvmsg", _always, _NETWORK),
    ("os", "", "fork forkpty posix_spawn posix_spawnp system kill killpg", _always, _PROCESSES),
    ("subprocess", "Popen", "__init__ communicate wait", _always, _PROCESSES),
    ("multiprocessing.process", "BaseProcess", "start join", _always, _PROCESSES),
    ("multiprocessing.connection", "_ConnectionBase",
     "send send_bytes recv recv_bytes recv_bytes_into", _always, _PROCESSES),
    ("multiprocessing.queues", "Queue", "put get", _always, _PROCESSES),
    ("multiprocessing.pool", "Pool", "apply_async _map_async imap imap_unordered", _always,
     _PROCESSES),
    ("concurrent.futures.process", "ProcessPoolExecutor", "submit", _always, _PROCESSES),
    ("concurrent.futures.thread", "ThreadPoolExecutor", "submit", _always, _THREADS),
    ("threading", "Thread", "start join", _always, _THREADS),
    ("threading", "Condition", "wait notify", _always, _THREADS),
    ("threading", "Event", "set clear", _always, _THREADS),
    ("threading", "Semaphore", "acquire release", _always, _THREADS),
    ("threading", "Barrier", "wait", _always, _THREADS),
    ("queue", "Queue", "put get task_done", _always, _THREADS),
)  # fmt: skip


@contextmanager
def out_of_reach() -> Iterator[None]:
    """Inside, this thread cannot reach out; what it logs is not logged."""
    thread = get_ident()
    put: list[tuple[Any, str, Any, Any]] = []
    try:
        for module, owner, names, condition, what in _REFUSED:
            space: Any = sys.modules.get(module)
            space = getattr(space, owner, None) if owner else space
            for name in names.split() if space is not None else ():
                if (original := getattr(space, name, None)) is not None:
                    _put(put, space, name, _refusing(original, thread, condition, what))
        logging: Any = sys.modules.get("logging")
        if logging is not None:
            _put(put, logging.Logger, "handle", _silent(logging.Logger.handle, thread))
        yield
    finally:
        for space, name, before, ours in reversed(put):
            if vars(space).get(name) is not ours:
                continue  # somebody else has put something there meanwhile
            if before is _MISSING:
                delattr(space, name)
            else:
                setattr(space, name, before)


_MISSING = object()


def _put(put: list[tuple[Any, str, Any, Any]], space: Any, name: str, ours: Any) -> None:
    put.append((space, name, vars(space).get(name, _MISSING), ours))
    setattr(space, name, ours)


def _refusing(
    original: Callable[..., Any], thread: int, condition: _Condition, what: str
) -> Callable[..., Any]:
    @functools.wraps(original)
    def instead(*args: Any, **kwargs: Any) -> Any:
        if get_ident() == thread and condition(args, kwargs):
            raise ReachesOut(f"{what} by {original.__name__}, which cannot be taken back")
        return original(*args, **kwargs)

    return instead


def _silent(original: Callable[..., Any], thread: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def instead(*args: Any, **kwargs: Any) -> Any:
        return None if get_ident() == thread else original(*args, **kwargs)

    return instead
