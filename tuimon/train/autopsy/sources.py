"""Where batches come from: the script's generators that wait, and items of its datasets.

Finds them among the living objects of the process; runs and changes nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from types import FrameType, FunctionType, GeneratorType
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, Subset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from tuimon.train.autopsy import looks, permits
from tuimon.train.autopsy.bytecode import CannotReplay
from tuimon.train.autopsy.poison import Poison
from tuimon.train.autopsy.shadow import locals_of
from tuimon.train.autopsy.sites import is_foreign

MAX_GENERATORS = 8
MAX_ROWS = 4  # bad samples of one tensor that are looked for


class Item(NamedTuple):
    """The call that gave one sample of the newest batch: the script's `__getitem__`."""

    function: FunctionType
    args: tuple[Any, int]


class Sources:
    """What gives the script its batches.

    Attributes:
        frames: of generators that wait.
        iterators: over loaders without workers.
    """

    def __init__(self) -> None:
        self.frames: list[FrameType] = []
        self.iterators: list[Any] = []
        for each in gc.get_objects():
            kind = type(each)
            if kind is GeneratorType:
                frame = each.gi_frame
                is_ours = frame is not None and not is_foreign(frame.f_code.co_filename)
                if is_ours and not each.gi_running:
                    self.frames.append(frame)
            elif kind is _SingleProcessDataLoaderIter:
                self.iterators.append(each)
        self.frames.sort(key=_has_no_tensor)
        del self.frames[MAX_GENERATORS:]

    def items(self, rows: Sequence[int]) -> Iterator[Item]:
        """The samples in these rows of the newest batches."""
        for iterator in self.iterators:
            fetched = _indices(iterator)
            for row in rows:
                if row < len(fetched):
                    item = _item(iterator._dataset, fetched[row])
                    if item is not None:
                        yield item


def _has_no_tensor(frame: FrameType) -> bool:
    try:
        return not any(type(each) in permits.TENSORS for each in locals_of(frame).values())
    except CannotReplay:
        return True


def rows_of(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[Poison]]:
    """The bad samples of bad batches: where they are, and each by itself."""
    rows: list[int] = []
    found: list[Poison] = []
    for tensor in tensors:
        for row in looks.bad_samples(tensor)[:MAX_ROWS]:
            sample = tensor.detach()[row]
            if sample.numel() > 1:  # one NaN looks like another
                rows.append(row)
                found.append(Poison(sample))
    return list(dict.fromkeys(rows)), found


def _indices(iterator: Any) -> Sequence[int]:
    """Which samples the newest batch was made of; the sampler of the batches still has them."""
    frame = getattr(iterator._sampler_iter, "gi_frame", None)
    size = getattr(iterator._index_sampler, "batch_size", None)
    if frame is None or size is None:
        return ()
    try:
        held = list(locals_of(frame).values())
    except CannotReplay:
        return ()
    for value in held:
        is_list = type(value) in (list, tuple) and 0 < len(value) <= size
        if is_list and all(type(each) is int for each in value):
            return list(value)
    return ()


def _item(dataset: Any, index: int) -> Item | None:
    while type(dataset) is Subset:
        index = int(dataset.indices[index])
        dataset = dataset.dataset
    function = permits.method(type(dataset), "__getitem__")
    if function is None or function is Dataset.__getitem__:
        return None
    return Item(function, (dataset, index))
