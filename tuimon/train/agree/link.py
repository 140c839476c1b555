"""The job's own store, on a connection of ours and below a name of ours.

Used by one thread. A store that fails raises whatever it raises; the caller gives up on it.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

TIMEOUT_S = 10.0  # of one answer of the store: a frozen one must not hold up anybody for long
SHARE_ALONE = 0.25  # of a group's time-out: an autopsy and its trials come before one collective

_Message = TypeVar("_Message", bound=msgspec.Struct)


class Link:
    """Messages under keys. Every key is written once, but for beats."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._store = store

    def put(self, key: str, message: msgspec.Struct) -> None:
        """Write a message."""
        self._store.set(key, msgspec.json.encode(message).decode())

    def has(self, keys: Sequence[str]) -> bool:
        """Whether all of these have been written."""
        return not keys or bool(self._store.check(list(keys)))

    def get(self, key: str, kind: type[_Message]) -> _Message:
        """Read a message that is there."""
        return msgspec.json.decode(self._store.get(key), type=kind)

    def append(self, name: str, message: msgspec.Struct) -> None:
        """Write a message behind those that have been appended to `name` by anybody."""
        self.put(f"{name}/{self._store.add(f'{name}/count', 1)}", message)

    def count(self, name: str) -> int:
        """One more of these; how many there are now."""
        return int(self._store.add(name, 1))

    def set(self, key: str, value: str) -> None:
        """Write one word, over an earlier one."""
        self._store.set(key, value)

    def words(self, keys: Sequence[str]) -> list[str | None]:
        """What stands there now, by key; None where nothing does."""
        return [
            bytes(self._store.get(key)).decode() if self._store.check([key]) else None
            for key in keys
        ]


def job() -> tuple[Any, int, int] | None:
    """(store, rank, world size) of the process group; None without one of several ranks."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = distributed.get_world_size()
    if size < 2:
        return None
    return distributed.distributed_c10d._get_default_store(), distributed.get_rank(), size


def expects_others() -> bool:
    """Whether there are other ranks, or a launcher has started some."""
    size = os.environ.get("WORLD_SIZE", "")
    return job() is not None or (size.isdecimal() and int(size) > 1)


def alone_s(limit_s: float) -> float:
    """Of so many seconds, those that this rank may keep the others waiting in a collective.

    They give up after the time-out of their group, and the job ends with them.
    """
    timeout_s = math.inf
    with contextlib.suppress(Exception):  # names of torch's own, which another version may lack
        timeout_s = min(_timeouts_s(), default=math.inf)
    return min(limit_s, SHARE_ALONE * timeout_s)


def _timeouts_s() -> Iterator[float]:
    """Of the groups of this process, by kind of device."""
    if job() is None:
        return
    for group in list(sys.modules["torch.distributed.distributed_c10d"]._world.pg_map):
        for device in group._device_types:
            options = getattr(group._get_backend(device), "options", None)
            timeout = getattr(options, "_timeout", None)
            if isinstance(timeout, timedelta) and timeout > timedelta():
                yield timeout.total_seconds()


def open_link(store: Any, rank: int, size: int) -> Link:
    """Connect once more to a store, under a name that no earlier run of the same job has used."""
    c10d = sys.modules["torch.distributed"]
    own = store.clone()
    own.set_timeout(timedelta(seconds=TIMEOUT_S))
    link = Link(c10d.PrefixStore("tuimon", own), rank, size)
    times = link.count(f"starts/{rank}")
    return Link(c10d.PrefixStore(f"tuimon/{times}", own), rank, size)
