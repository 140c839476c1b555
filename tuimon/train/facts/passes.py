"""Where the training stands in its data: which pass over which DataLoader, and which batch of it.

Told by the DataLoader tap and the root module's pre-hook; calls nothing of the user's.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection
from typing import Any

import torch
from torch.utils.data import dataloader

from tuimon.train.leaves import Leaf, leaves_of

LOOK_BACK = 2  # loops that fetch ahead use the batch before the newest one


class Pass:
    """One iteration over one DataLoader.

    Attributes:
        epoch: how many earlier passes over the same loader fed the training; None until this does.
        batch: index of the batch that the newest training forward used.
        fetched: how many batches the loop has taken.
        has_ended: there are no more.
        batches: how many there are, as far as that is known.
    """

    def __init__(self, feed: _Feed) -> None:
        self.feed = feed
        self.epoch: int | None = None
        self.batch = 0
        self.fetched = 0
        self.has_ended = False
        self._recent: deque[tuple[int, weakref.ref[torch.Tensor]]] = deque(maxlen=LOOK_BACK)

    @property
    def batches(self) -> int | None:
        return self.feed.batches

    def fetch(self, result: Any) -> None:
        """A batch has been fetched."""
        found, _ = leaves_of((result,), {}, 1)
        if found:
            self._recent.append((self.fetched, weakref.ref(found[0][1])))
        self.fetched += 1

    def feeds(self, inputs: Collection[Leaf], *, fresh: bool) -> bool:
        """A training forward begins with these tensors: note which batch it uses.

        Where none of them came from the loader as it is, the newest batch counts as used.

        Args:
            inputs: what the root module was called with.
            fresh: a batch has been fetched since the last forward.

        Returns:
            False when the pass has ended and nothing speaks for a batch of it.
        """
        if self.epoch is None:
            self.epoch = self.feed.epochs
            self.feed.epochs += 1
        for index, reference in self._recent:
            tensor = reference()
            if tensor is not None and any(tensor is each for _, each in inputs):
                self.batch = index
                return True
        if fresh:
            self.batch = self.fetched - 1
        return fresh or not self.has_ended


class _Feed:
    """What all passes over one DataLoader share."""

    def __init__(self, batches: int | None) -> None:
        self.epochs = 0
        self.batches = batches


class Passes:
    """The passes that are under way. Used by the training thread only.

    Attributes:
        current: the one that fed the newest training forward.
        newest: the one that has fetched since; None when none has.
    """

    def __init__(self) -> None:
        self.current: Pass | None = None
        self.newest: Pass | None = None
        self._feeds: weakref.WeakKeyDictionary[Any, _Feed] = weakref.WeakKeyDictionary()
        self._passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()

    @property
    def place(self) -> tuple[int | None, int | None]:
        """(epoch, batch) of the newest training forward, both from 0; None without a loader."""
        current = self.current
        return (None, None) if current is None else (current.epoch, current.batch)

    def begin(self, loader: Any, iterator: Any) -> None:
        """A pass over a loader begins."""
        feed = self._feeds.get(loader)
        if feed is None:
            feed = self._feeds[loader] = _Feed(_length(loader))
        self._passes[iterator] = Pass(feed)

    def fetched(self, iterator: Any, result: Any) -> None:
        """A batch has been fetched."""
        known = self._passes.get(iterator)
        if known is not None:
            known.fetch(result)
            self.newest = known

    def ended(self, iterator: Any) -> None:
        """A pass has come to its end: from now on its length is known."""
        known = self._passes.pop(iterator, None)
        if known is not None:
            known.has_ended = True
            known.feed.batches = known.fetched if known.feed.batches is None else known.feed.batches

    def used(self, inputs: Collection[Leaf]) -> None:
        """A training forward begins with these tensors."""
        newest, self.newest = self.newest, None
        if newest is not None:
            self.current = newest
        current = self.current
        if current is not None and not current.feeds(inputs, fresh=newest is not None):
            self.current = None

    def left(self) -> None:
        """A forward that trains nothing: what was fetched for it feeds no training."""
        self.newest = None


def _length(loader: Any) -> int | None:
    """Batches of a loader, where asking for it runs torch's own code and the dataset's length.

    A sampler of the user's may draw random numbers to tell its length; the length of an iterable
    dataset is an estimate, and asking for it makes torch warn later.
    """
    if loader._dataset_kind != dataloader._DatasetKind.Map:
        return None
    for sampler in (loader.batch_sampler, loader.sampler):
        if sampler is not None and not type(sampler).__module__.startswith("torch."):
            return None
    try:
        return len(loader._index_sampler)
    except (TypeError, NotImplementedError):
        return None
