"""Looks at every tensor of files of weights and says which are healthy, one file at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tuimon.inspect.checkpoint import Checkpoint, Unreadable
from tuimon.inspect.dtypes import SERVING_MAX
from tuimon.inspect.places import Place, open_checkpoint, places_of
from tuimon.inspect.statistics import Measured
from tuimon.inspect.torch_file import TorchReader
from tuimon.model.text import plain

SCHEMA = "tuimon.scan/1"
Progress = Callable[[str, int, int], None]
"""Told the file that is being read, its bytes read so far, and all of its bytes."""


class ScannedFile(msgspec.Struct):
    """What was found in one file.

    Attributes:
        error: why it could not be read; None where it was.
        tensors: all of them, in the order of the file.
        notes: what a reader must know about it.
    """

    path: str
    error: str | None = None
    tensors: list[Measured] = []
    size_bytes: int = 0
    notes: list[str] = []

    def unhealthy(self, serve: str | None) -> list[Measured]:
        """The tensors that are not as they should be."""
        return [each for each in self.tensors if not is_healthy(each, serve)]

    def is_healthy(self, serve: str | None) -> bool:
        """Whether it could be read, and all that is in it is healthy."""
        return self.error is None and all(is_healthy(each, serve) for each in self.tensors)


def is_healthy(tensor: Measured, serve: str | None = None) -> bool:
    """Whether a tensor is finite and, where weights are served in `serve`, fits that dtype."""
    if not tensor.is_finite:
        return False
    return serve is None or is_of_optimizer(tensor.name) or tensor.headroom.get(serve, 1.0) >= 1.0


def is_of_optimizer(name: str) -> bool:
    """Whether it is state of an optimizer, which is never served."""
    parts = name.lower().split(".")
    is_state = any(a == "state" and b.isdecimal() for a, b in itertools.pairwise(parts))
    return is_state or any("optim" in part or part.startswith("exp_avg") for part in parts)


class Scanner:
    """Reads files; holds the process that reads those of torch until it is closed."""

    def __init__(self, *, trusts_files: bool = False, progress: Progress | None = None) -> None:
        """Begin with nothing read.

        Args:
            trusts_files: see `TorchReader`.
            progress: is called after each tensor.
        """
        self._reader = TorchReader(trusts_files=trusts_files)
        self._progress = progress

    def __enter__(self) -> Scanner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the other process, where there is one."""
        self._reader.close()

    @contextlib.contextmanager
    def opened(self, path: Path) -> Iterator[Checkpoint]:
        """A file of tensors.

        Raises:
            Unreadable: nothing here can read it.
        """
        checkpoint = open_checkpoint(path, self._reader)
        try:
            yield checkpoint
        finally:
            checkpoint.close()

    def scan(self, place: Place) -> ScannedFile:
        """Everything about one file; never raises for what is in it."""
        scanned = ScannedFile(str(place.path))
        if place.problem:
            scanned.error = place.problem
            return scanned
        try:
            with self.opened(place.path) as checkpoint:
                scanned.notes = checkpoint.notes
                self._measure(checkpoint, scanned)
            if place.expected is not None:
                _compare_with_index(scanned, place.expected)
        except Unreadable as error:
            scanned.error = str(error)
        return scanned

    def _measure(self, checkpoint: Checkpoint, scanned: ScannedFile) -> None:
        total = sum(stored.size_bytes for stored in checkpoint.tensors)
        for index, stored in enumerate(checkpoint.tensors):
            if self._progress:
                self._progress(scanned.path, scanned.size_bytes, total)
            scanned.tensors.append(checkpoint.measure(index))
            scanned.size_bytes += stored.size_bytes
        if self._progress:
            self._progress(scanned.path, total, total)


def _compare_with_index(scanned: ScannedFile, expected: set[str]) -> None:
    missing = sorted(expected - {each.name for each in scanned.tensors})
    if missing:
        scanned.error = (
            f"lacks {len(missing)} tensors that its index promises, "
            f"such as {plain(missing[0], 60)!r}"
        )


def all_places(paths: Iterable[str]) -> list[Place]:
    """The files behind several paths, each once."""
    places: dict[str, Place] = {}
    for path in paths:
        for place in places_of(Path(path)):
            places.setdefault(str(place.path), place)
    return list(places.values())


def document(
    files: list[ScannedFile], *, serve: str | None = None, with_all: bool = False
) -> dict[str, Any]:
    """The JSON object of a scan: schema `tuimon.scan/1`."""
    return {
        "schema": SCHEMA,
        "healthy": all(each.is_healthy(serve) for each in files),
        "files": [file_object(each, serve=serve, with_all=with_all) for each in files],
    }


def file_object(
    scanned: ScannedFile, *, serve: str | None = None, with_all: bool = False
) -> dict[str, Any]:
    """The JSON object of one file."""
    shown = scanned.tensors if with_all else scanned.unhealthy(serve)
    return {
        "path": scanned.path,
        "error": scanned.error,
        "tensors": [msgspec.to_builtins(each) for each in shown],
        "tensors_read": len(scanned.tensors),
        "bytes_read": scanned.size_bytes,
        "notes": scanned.notes,
    }


def narrowest(scanned: ScannedFile, served: str) -> Measured | None:
    """The weight with the least headroom in a dtype that weights are served in."""
    assert served in SERVING_MAX
    weights = [
        each
        for each in scanned.tensors
        if served in each.headroom and not is_of_optimizer(each.name)
    ]
    return min(weights, key=lambda each: each.headroom[served], default=None)
