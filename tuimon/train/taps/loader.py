"""Listens to `DataLoader` iteration: how long the training waits for its next batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch.utils.data import dataloader

from tuimon.train.taps.patches import On, Patches

if TYPE_CHECKING:
    from tuimon.train.observer import Observer


class LoaderTap:
    """Adds up the waits; the next training forward takes them, an evaluation drops them."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._waited = observer.boundary.guard("data", self._on_waited)

    def install(self, patches: Patches) -> None:
        """Wrap the start of an iteration (workers are made there) and every fetch."""
        patches.install(dataloader.DataLoader, "__iter__", self._wrap)
        patches.install(dataloader._BaseDataLoaderIter, "__next__", self._wrap)

    def _wrap(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def fetch(loader: Any) -> Any:
            if not on[0] or observer.off or get_ident() != observer.thread:
                return original(loader)
            began_s = time.perf_counter()
            result = original(loader)
            self._waited(time.perf_counter() - began_s)
            return result

        return fetch

    def _on_waited(self, seconds: float) -> None:
        times = self._observer.times
        times.fetched_s = (times.fetched_s or 0.0) + seconds
