"""Where the training stands in its data: which pass over it, and which batch of that.

Told by the DataLoader tap and the root module's pre-hook; calls nothing of the user's. A loop may
make a new DataLoader for every pass: what counts is the data.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils.data import dataloader

from tuimon.train.leaves import Leaf, leaves_of

MAX_SITES = 64
LOOK_BACK = 2  # loops that fetch ahead use the batch before the newest one


Site = tuple[CodeType, int]
"""Where in the code an iteration begins."""


class Pass:
    """One iteration over one DataLoader.

    Attributes:
        epoch: how many earlier passes over the same data fed the training; None until this does,
            and where it cannot be known.
        feeds_training: it has fed it.
        batch: index of the batch that the newest training forward used.
        fetched: how many batches the loop has taken.
        has_ended: there are no more.
        batches: how many there are, as far as that is known.
    """

    def __init__(self, feed: _Feed, batches: int | None, site: Site) -> None:
        self.feed = feed
        self.site = site
        self.epoch: int | None = None
        self.feeds_training = False
        self._batches = batches
        self.batch = 0
        self.fetched = 0
        self.has_ended = False
        self._recent: deque[tuple[int, weakref.ref[torch.Tensor]]] = deque(maxlen=LOOK_BACK)

    @property
    def batches(self) -> int | None:
        return self.feed.learnt if self._batches is None else self._batches

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
        if not self.feeds_training:
            self.feeds_training = True
            self.epoch = self.feed.epochs
            if self.epoch is not None:
                self.feed.epochs = self.epoch + 1
        for index, reference in self._recent:
            tensor = reference()
            if tensor is not None and any(tensor is each for _, each in inputs):
                self.batch = index
                return True
        if fresh:
            self.batch = self.fetched - 1
        return fresh or not self.has_ended


class _Feed:
    """What all passes over the same data share.

    Attributes:
        epochs: passes that fed the training so far; None where nobody can know.
        learnt: batches of a pass, by one that came to its end.
    """

    def __init__(self, data: Any, batches: int | None, epochs: int | None = 0) -> None:
        self.epochs = epochs
        self.learnt: int | None = None
        self._kind, self._batches = type(data), batches
        self.follow(data)

    def follow(self, data: Any) -> None:
        """This object holds the data from now on."""
        try:
            self._data: weakref.ref[Any] | None = weakref.ref(data)
        except TypeError:  # a list, say
            self._data = None

    def holds(self, data: Any) -> bool:
        """Whether it is this object."""
        return self._data is not None and self._data() is data

    @property
    def is_gone(self) -> bool:
        """Whether the object is gone, as far as anybody can tell."""
        return self._data is None or self._data() is None

    def is_like(self, data: Any, batches: int | None) -> bool:
        """Whether other data can be taken for the same that was made anew."""
        return batches is not None and batches == self._batches and type(data) is self._kind


class Passes:
    """The passes that are under way. Used by the training thread only.

    Attributes:
        current: the one that fed the newest training forward.
        newest: the one that has fetched since; None when none has.
    """

    def __init__(self) -> None:
        self.current: Pass | None = None
        self.newest: Pass | None = None
        self._loaders: weakref.WeakKeyDictionary[Any, tuple[_Feed, int | None]]
        self._loaders = weakref.WeakKeyDictionary()
        self._feeds: list[_Feed] = []  # whose data still lives
        self._sites: dict[Site, _Feed] = {}  # of the newest pass from there that fed the training
        self._passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()

    @property
    def place(self) -> tuple[int | None, int | None]:
        """(epoch, batch) of the newest training forward, both from 0; None without a loader."""
        current = self.current
        return (None, None) if current is None else (current.epoch, current.batch)

    def begin(self, loader: Any, iterator: Any, frame: FrameType) -> None:
        """A pass over a loader begins, in this frame."""
        site = frame.f_code, frame.f_lasti
        known = self._loaders.get(loader)
        if known is None:
            batches = _length(loader)
            known = self._loaders[loader] = self._feed_of(loader.dataset, batches, site), batches
        self._passes[iterator] = Pass(*known, site)

    def _feed_of(self, data: Any, batches: int | None, site: Site) -> _Feed:
        """What is known of the data of a new loader, else a beginning."""
        feed = next((each for each in self._feeds if each.holds(data)), None)
        if feed is not None:
            return feed
        before = self._sites.get(site)
        follows = before is not None and before.is_gone
        if before is not None and follows and before.is_like(data, batches):
            before.follow(data)
            feed = before
        else:
            feed = _Feed(data, batches, None if follows else 0)
        self._feeds = [each for each in self._feeds if not each.is_gone and each is not feed]
        self._feeds.append(feed)
        return feed

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
            known.feed.learnt = known.fetched if known.feed.learnt is None else known.feed.learnt

    def used(self, inputs: Collection[Leaf]) -> None:
        """A training forward begins with these tensors."""
        newest, self.newest = self.newest, None
        if newest is not None:
            self.current = newest
        current = self.current
        if current is None:
            return
        if not current.feeds_training and (current.site in self._sites or self._has_room()):
            self._sites[current.site] = current.feed
        if not current.feeds(inputs, fresh=newest is not None):
            self.current = None

    def _has_room(self) -> bool:
        return len(self._sites) < MAX_SITES

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
