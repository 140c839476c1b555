"""Which operation left something bad in which stretch of memory.

Storages are known by weak references, so that memory used again is not mistaken for what it held.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tuimon.train.autopsy import looks

MAX_WRITES = 64  # bad stretches of one storage that are kept


class Alive:
    """A weak reference to the storage of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        dense = looks.stored(tensor)
        assert dense is not None
        self._reference: Any = StorageWeakRef(dense.untyped_storage())  # type: ignore[no-untyped-call]

    def __bool__(self) -> bool:
        return not self._reference.expired()


class _Write(NamedTuple):
    alive: Alive
    first: int
    end: int
    op: int


class Memory:
    """What bad operations wrote, by storage."""

    def __init__(self) -> None:
        self._writes: dict[int, list[_Write]] = {}

    def __bool__(self) -> bool:
        return bool(self._writes)

    def __contains__(self, key: int | None) -> bool:
        return key in self._writes

    def writers(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Operations that left something bad in the memory of a tensor, in order."""
        writes = self._writes.get(storage_key(tensor) or 0)
        if not writes:
            return ()
        first, end = _extent(tensor)
        return tuple(
            write.op for write in writes if write.first < end and first < write.end and write.alive
        )

    def wrote(self, tensor: torch.Tensor, op: int) -> None:
        """An operation left something bad in a tensor."""
        key = storage_key(tensor)
        if key is None:
            return
        first, end = _extent(tensor)
        kept = [write for write in self._outside(key, first, end) if write.alive]
        self._writes[key] = [*kept[-MAX_WRITES:], _Write(Alive(tensor), first, end, op)]

    def cleared(self, tensor: torch.Tensor) -> None:
        """Everything in a tensor is finite now: what was bad there is gone."""
        key = storage_key(tensor)
        if key not in self._writes or key is None:
            return
        dense = looks.stored(tensor)
        if dense is not None and dense.is_contiguous():
            self._writes[key] = self._outside(key, *_extent(tensor))

    def forget(self, tensor: torch.Tensor) -> None:
        """A tensor is new: its storage has no past."""
        self._writes.pop(storage_key(tensor) or 0, None)

    def _outside(self, key: int, first: int, end: int) -> list[_Write]:
        """Writes that are not wholly within a stretch."""
        writes = self._writes.get(key, ())
        return [write for write in writes if not (first <= write.first and write.end <= end)]


def storage_key(tensor: torch.Tensor) -> int | None:
    """What tensors that share memory have in common."""
    dense = looks.stored(tensor)
    return None if dense is None else int(dense.untyped_storage()._cdata)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte that a tensor may touch in its storage."""
    dense = looks.stored(tensor)
    assert dense is not None
    size = dense.element_size()
    first = int(dense.storage_offset()) * size
    span = sum((n - 1) * stride for n, stride in zip(dense.shape, dense.stride(), strict=True))
    return first, first + (int(span) + 1) * size
