"""The base of every record, apart so that kinds of records can have files of their own."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Base of everything written to a ring."""
