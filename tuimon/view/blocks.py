"""Neighbouring buckets in step order, as columns of numbers, and how samples become them."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tuimon.view.frame import HAS_FINITE, HAS_NAN, HAS_NEG_INF, HAS_POS_INF, Codes, Floats

Steps = npt.NDArray[np.int64]
Positions = npt.NDArray[np.intp]


class Block(msgspec.Struct):
    """Neighbouring buckets in step order; `low` is +inf and `high` -inf without a finite sample.

    `mean` and `weight` speak of finite samples only; `keys` are steps, shifted by the level.
    """

    keys: Steps
    low: Floats
    high: Floats
    mean: Floats
    weight: Floats
    flags: Codes

    @classmethod
    def empty(cls, capacity: int) -> Block:
        low, high, mean, weight = np.empty((4, capacity), np.float32)
        keys, flags = np.empty(capacity, np.int64), np.empty(capacity, np.uint8)
        return cls(keys, low, high, mean, weight, flags)

    def part(self, start: int, end: int) -> Block:
        return Block(
            self.keys[start:end],
            self.low[start:end],
            self.high[start:end],
            self.mean[start:end],
            self.weight[start:end],
            self.flags[start:end],
        )

    def followed_by(self, other: Block) -> Block:
        columns = self.__struct_fields__
        pairs = ((getattr(self, name), getattr(other, name)) for name in columns)
        return Block(*(np.concatenate(pair) for pair in pairs))

    def reserve(self, capacity: int) -> None:
        """Grow to at least `capacity`, at least doubling."""
        have = len(self.keys)
        if capacity > have:
            for name in self.__struct_fields__:
                column = getattr(self, name)
                setattr(self, name, np.resize(column, max(capacity, 2 * have)))

    def write(self, start: int, other: Block) -> None:
        end = start + len(other.keys)
        for name in self.__struct_fields__:
            getattr(self, name)[start:end] = getattr(other, name)

    def grouped(self, starts: Positions, keys: Steps) -> Block:
        """Reduce the runs that begin at `starts`; `keys` name the runs."""
        weight = np.add.reduceat(self.weight, starts, dtype=np.float64)
        total = np.add.reduceat(self.mean.astype(np.float64) * self.weight, starts)
        return Block(
            keys,
            np.minimum.reduceat(self.low, starts),
            np.maximum.reduceat(self.high, starts),
            (total / np.maximum(weight, 1.0)).astype(np.float32),
            weight.astype(np.float32),
            np.bitwise_or.reduceat(self.flags, starts),
        )


def flags_of(values: Floats) -> Codes:
    """The `HAS_*` bit of each sample."""
    finite = np.isfinite(values)
    if finite.all():
        return np.full(len(values), HAS_FINITE, np.uint8)
    flags = np.where(finite, HAS_FINITE, HAS_NAN).astype(np.uint8)
    flags[values == np.inf] = HAS_POS_INF
    flags[values == -np.inf] = HAS_NEG_INF
    return flags


def block_of(keys: Steps, values: Floats) -> Block:
    """One bucket a sample."""
    flags = flags_of(values)
    finite = flags == HAS_FINITE
    if finite.all():
        return Block(keys, values, values, values, np.ones(len(values), np.float32), flags)
    return Block(
        keys,
        np.where(finite, values, np.float32(np.inf)),
        np.where(finite, values, np.float32(-np.inf)),
        np.where(finite, values, np.float32(0)),
        finite.astype(np.float32),
        flags,
    )
