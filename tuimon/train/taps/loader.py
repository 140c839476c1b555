"""Listens to `DataLoader` iteration: waits for the next batch, passes over the data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.utils.data import dataloader

from tuimon.train.taps.patches import On, Patches

if TYPE_CHECKING:
    from tuimon.train.observer import Observer


class LoaderTap:
    """Adds up the waits; the next training forward takes them, an evaluation drops them."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        guard = observer.boundary.guard
        self._waited = guard("data", self._on_waited)
        self._began = guard("data", self._on_began)
        self._fetched = guard("data", self._on_fetched)
        self._ended = guard("data", self._on_ended)

    def install(self, patches: Patches) -> None:
        """Wrap the start of an iteration (workers are made there) and every fetch."""
        patches.install(dataloader.DataLoader, "__iter__", self._wrap_start)
        patches.install(dataloader._BaseDataLoaderIter, "__next__", self._wrap_fetch)

    def _wrap_start(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def start(loader: Any) -> Any:
            if not on[0] or observer.off or get_ident() != observer.thread:
                return original(loader)
            began_s = time.perf_counter()
            iterator = original(loader)
            self._waited(time.perf_counter() - began_s)
            self._began(loader, iterator, sys._getframe(1))
            return iterator

        return start

    def _wrap_fetch(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def fetch(iterator: Any) -> Any:
            if not on[0] or observer.off or get_ident() != observer.thread:
                return original(iterator)
            began_s = time.perf_counter()
            try:
                result = original(iterator)
            except StopIteration:
                self._ended(iterator)
                raise
            self._waited(time.perf_counter() - began_s)
            self._fetched(iterator, result)
            return result

        return fetch

    def _on_began(self, loader: Any, iterator: Any, frame: FrameType) -> None:
        self._observer.batches.passes.begin(loader, iterator, frame)

    def _on_fetched(self, iterator: Any, batch: Any) -> None:
        self._observer.batches.passes.fetched(iterator, batch)

    def _on_ended(self, iterator: Any) -> None:
        self._observer.batches.passes.ended(iterator)

    def _on_waited(self, seconds: float) -> None:
        times = self._observer.times
        times.fetched_s = (times.fetched_s or 0.0) + seconds
