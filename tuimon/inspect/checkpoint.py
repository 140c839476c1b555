"""What every kind of checkpoint file offers: its tensors by name, and their bytes in order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from tuimon.inspect.dtypes import DType
from tuimon.inspect.statistics import Measured, Read


class Unreadable(Exception):
    """A file cannot be looked at; the text says why in one line, without its name."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a file."""

    name: str
    dtype: DType
    shape: list[int]

    @property
    def size_bytes(self) -> int:
        """What it takes in the file."""
        return (math.prod(self.shape) * self.dtype.bits + 7) // 8


class Checkpoint(Protocol):
    """An open file of tensors."""

    tensors: list[Stored]
    notes: list[str]

    def measure(self, index: int) -> Measured:
        """The statistics of one tensor.

        Raises:
            Unreadable: it cannot be read any more.
        """
        ...

    def read(self, index: int) -> Read:
        """The bytes of one tensor, to be read before the next call.

        Raises:
            Unreadable: as above; reading may raise it too.
        """
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...
