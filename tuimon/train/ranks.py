"""Compares this process with the other ranks of its training on the same host, by checksums.

Each rank leaves a small file with a checksum of its weights and of its batch at some updates, and
reads those of the others later. Nothing is sent and nobody waits: no collective, no store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from tuimon.feed import private
from tuimon.model.loop import RankState
from tuimon.train.stats import measurable

# Updates whose weights are compared: often while replicas begin to drift, seldom later.
EARLY = frozenset((0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512))
EVERY = 1024
MAX_TENSORS = 64
MAX_ELEMENTS = 4096  # of each, evenly spread
FRESH_S = 120.0  # files older than the process by more belong to an earlier training
PATIENCE_LOOKS = 4  # for all others; those on other hosts write nothing here
KEPT_FILES = 8  # of each rank: the others come to the same update a step later at most
_ODD = 0x9E3779B97F4A7C1  # spreads the bits of neighbours apart
_DROPPED_BITS = 4  # of single precision: sums in another order differ in them


def is_compared(number: int) -> bool:
    """Whether checksums are made after so many updates."""
    return number in EARLY or number % EVERY == 0


class Ranks:
    """The files of one process. Used by the training thread only.

    A rank that has not written yet is compared at one of the next looks.
    """

    def __init__(self) -> None:
        self._began_s = time.time()
        self._were_equal = False
        self._folder: Path | None = None
        self._open: dict[int, tuple[str, ...]] = {}  # update -> what was written for it
        self._looks: dict[int, int] = {}  # how often it was compared with what others have written
        self._mine: list[Path] = []

    @property
    def waits(self) -> bool:
        """Whether checksums are still to be compared."""
        return bool(self._open)

    def look(
        self,
        number: int,
        params: Iterable[torch.Tensor],
        batch: Iterable[torch.Tensor],
        *,
        wrapped: bool,
    ) -> list[RankState]:
        """After `number` updates: leave checksums, compare those of earlier looks.

        Weights that are no replicas differ for a reason: without a data-parallel wrapper only
        those count that were equal before the first update, or that get equal gradients.

        Args:
            number: how many updates there have been.
            params: the parameters that are trained.
            batch: the tensors of the newest batch.
            wrapped: whether the model is data-parallel.
        """
        place = place_of()
        if place is None:
            return []
        rank, size, job = place
        folder = self._in(job)
        if is_compared(number):
            listed = list(params)
            grads = [param.grad for param in listed if param.grad is not None]
            sums = checksum(listed), checksum(batch), checksum(grads)
            with contextlib.suppress(OSError):
                self._write(folder / f"{number}.{rank}", sums)
                self._open[number] = sums
            for old in list(self._open)[:-KEPT_FILES]:
                del self._open[old]
                self._looks.pop(old, None)
        return [self._judged(each, wrapped) for each in self._compare(folder, rank, size)]

    def close(self) -> None:
        """Take away what this process has left."""
        for file in self._mine:
            with contextlib.suppress(OSError):
                file.unlink()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def _judged(self, found: RankState, wrapped: bool) -> RankState:
        if found.step < 0:
            self._were_equal = not found.differing
        are_replicas = wrapped or self._were_equal or bool(found.same_gradient)
        return msgspec.structs.replace(
            found,
            is_wrapped=wrapped,
            differing=found.differing if are_replicas else [],
            same_batch=found.same_batch if are_replicas else [],
        )

    def _in(self, job: str) -> Path:
        if self._folder is None:
            name = hashlib.sha256(job.encode()).hexdigest()[:16]
            root = Path(os.environ.get("TUIMON_DIR") or tempfile.gettempdir())
            self._folder = root / f"tuimon-ranks-{os.getuid()}-{name}"
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder

    def _write(self, file: Path, sums: tuple[str, ...]) -> None:
        if file.parent.stat().st_uid != os.getuid():
            return
        private.replace(file, "\n".join(sums).encode())
        self._mine.append(file)
        for old in self._mine[:-KEPT_FILES]:
            with contextlib.suppress(OSError):
                old.unlink()
        del self._mine[:-KEPT_FILES]

    def _compare(self, folder: Path, rank: int, size: int) -> Iterable[RankState]:
        for number, (weights, batch, grads) in list(self._open.items()):
            self._looks[number] = looks = self._looks.get(number, 0) + 1
            others: dict[int, list[str]] = {}
            for other in range(size):
                if other != rank and (sums := self._read(folder / f"{number}.{other}")):
                    others[other] = sums
            if not others or (len(others) < size - 1 and looks < PATIENCE_LOOKS):
                continue
            del self._open[number]
            self._looks.pop(number, None)
            yield RankState(
                step=number - 1,
                rank=rank,
                world_size=size,
                weights=weights,
                batch=batch,
                peers=len(others),
                differing=[each for each, sums in others.items() if sums[0] != weights],
                same_batch=[each for each, sums in others.items() if batch and sums[1] == batch],
                same_gradient=[
                    each
                    for each, sums in others.items()
                    if grads and sums[2] == grads and sums[0] != weights
                ],
            )

    def _read(self, file: Path) -> list[str]:
        with contextlib.suppress(OSError, ValueError):
            if file.stat().st_mtime >= self._began_s - FRESH_S:
                sums = file.read_text().split("\n")
                return sums if len(sums) == 3 else []
        return []


def place_of() -> tuple[int, int, str] | None:
    """(rank, world size, what names the job on this host); None outside of any such training."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = distributed.get_world_size()
    if size < 2:
        return None
    return distributed.get_rank(), size, _job(distributed)


def _job(distributed: Any) -> str:
    store: Any = distributed.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    parts = [getattr(store, name, "") for name in ("host", "port", "path")]
    return "|".join(map(str, (type(store).__name__, *parts, os.environ.get("TORCHELASTIC_RUN_ID"))))


def checksum(tensors: Iterable[torch.Tensor]) -> str:
    """Of some elements of some tensors in host memory, rounded; "" where there are none."""
    found: list[str] = []
    for tensor in tensors:
        plain = type(tensor) in (torch.Tensor, nn.Parameter)  # a shard is not
        if not plain or tensor.device.type != "cpu" or len(found) >= MAX_TENSORS:
            continue
        values = measurable(tensor) if tensor.is_floating_point() else tensor
        if values is None or values.is_complex() or values.layout != torch.strided:
            continue
        flat = values.detach().reshape(-1)
        part = flat[:: max(1, flat.numel() // MAX_ELEMENTS)][:MAX_ELEMENTS]
        found.append(f"{flat.numel()}:{_digest(part)}")
    return hashlib.sha256(" ".join(found).encode()).hexdigest()[:16] if found else ""


def _digest(part: torch.Tensor) -> int:
    """A sum of whole numbers, which wraps around: the same in any order of addition."""
    if part.is_floating_point():
        bits = part.to(torch.float32).contiguous().view(torch.int32).to(torch.int64)
        part = (bits + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS
    places = torch.arange(1, part.numel() + 1, dtype=torch.int64, device="cpu")
    return int((part.to(torch.int64) * (places * _ODD)).sum())
