"""What a step record says about its gradients, in the words of a symptom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tuimon.model.records import (
    NAN,
    NEG_INF,
    NON_FINITE,
    NORM_OVERFLOW,
    POS_INF,
    BadTensor,
    DeviceStats,
    Step,
)
from tuimon.model.text import plain
from tuimon.model.units import number

_WORDS = ((NAN, "NaN"), (POS_INF, "+Inf"), (NEG_INF, "-Inf"))
_NAMED = 3  # tensors that a sentence names


def gradient_bits(record: Step | DeviceStats) -> int | None:
    """Flag bits of all parameters or-ed; None when the gradients were not measured.

    A norm that is not finite counts as what it is, unless the flags explain it as an overflow of
    the norm over finite elements.
    """
    bits = 0
    if record.flags:
        bits = int(np.bitwise_or.reduce(np.frombuffer(record.flags, np.uint8)))
    norm = record.grad_norm
    if norm is not None and math.isnan(norm):
        bits |= NAN
    if norm is not None and math.isinf(norm) and not bits & (NON_FINITE | NORM_OVERFLOW):
        # Finite norms of every parameter whose sum of squares overflows are an overflow too.
        bits |= NORM_OVERFLOW if record.norms else POS_INF
    if norm is None and not record.flags and not record.norms:
        return None
    return bits


def bits_in_words(bits: int) -> str:
    """ "NaN and +Inf", from flag bits."""
    return " and ".join(word for bit, word in _WORDS if bits & bit)


def describe_flags(flags: bytes, names: Sequence[str], mask: int = NON_FINITE) -> str:
    """Which parameters carry one of the bits in `mask`: the first names and how many."""
    if not flags:
        return ""
    where = np.flatnonzero(np.frombuffer(flags, np.uint8) & mask)
    if not len(where):
        return ""
    shown = [
        plain(names[index], 120) if index < len(names) else f"parameter {index}"
        for index in where[:_NAMED].tolist()
    ]
    more = len(where) - len(shown)
    tail = f" and {more:,} more" if more else ""
    return f"in {len(where):,} of {len(flags):,} parameters: {', '.join(shown)}{tail}"


def describe_tensors(tensors: Iterable[BadTensor]) -> str:
    """Names and exact counts of the first tensors."""
    found = list(tensors)
    parts = []
    for tensor in found[:_NAMED]:
        counts = [
            f"{count:,} {word}"
            for count, word in (
                (tensor.nan, "NaN"),
                (tensor.posinf, "+Inf"),
                (tensor.neginf, "-Inf"),
            )
            if count
        ]
        parts.append(f"{plain(tensor.name, 120)} ({', '.join(counts)} of {tensor.numel:,})")
    more = len(found) - len(parts)
    return ", ".join(parts) + (f" and {more:,} more" if more else "")


def loss_in_words(value: float, site: str) -> str:
    """ "loss is NaN at train.py:41"."""
    return f"loss is {number(value)}" + (f" at {plain(site, 200)}" if site else "")
