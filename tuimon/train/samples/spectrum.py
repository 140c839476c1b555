"""Looks at the elements of one tensor: evenly spread parts, magnitudes, histograms.

Reads only, on plain tensors in host memory as `stats.measurable` gives them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from tuimon.model.samples import HISTOGRAM_BINS, HISTOGRAM_LOW, Histogram

MAX_COUNTED = 1 << 16  # elements of a histogram: some 0.2 ms, and a share is right within 0.4 %

MIN_SAMPLES = 8  # a healthy unit is off for half of them: for all of 8 it is by chance 1 in 256

# Unsigned integer of the same width, bits of the mantissa, bits of the exponent.
_LAYOUTS: dict[torch.dtype, tuple[type[np.unsignedinteger], int, int]] = {
    torch.float32: (np.uint32, 23, 8),
    torch.float64: (np.uint64, 52, 11),
}
_Counts = npt.NDArray[np.int64]


def evenly(values: torch.Tensor, limit: int) -> torch.Tensor | None:
    """At most `limit` elements, evenly spread, as one dimension; all of a tensor that is small.

    A view wherever that is possible. None for a large tensor whose elements lie apart.
    """
    if values.is_contiguous():
        flat = values.view(-1)
    else:
        strides = values.stride()
        order = sorted(range(values.dim()), key=lambda each: -strides[each])
        dense = values.permute(order)
        if dense.is_contiguous():
            flat = dense.view(-1)
        elif values.numel() <= limit:
            return values.reshape(-1)
        else:
            return None
    total = flat.numel()
    if total <= limit:
        return flat
    every = -(-total // limit)
    # Prime to the number of elements, and so to every dimension: no row or column is preferred.
    while math.gcd(every, total) != 1:
        every += 1
    return flat[::every]


def absmax_of(values: torch.Tensor) -> float:
    """Largest magnitude; NaN where there is one."""
    low, high = (float(bound) for bound in torch.aminmax(values))
    return low if math.isnan(low) else max(-low, high)


def norms_of(tensors: Sequence[torch.Tensor]) -> list[float]:
    """L2 norm of each; one that single precision cannot hold is computed in double."""
    norms = [math.nan] * len(tensors)
    for wide in (False, True):
        places = [i for i, each in enumerate(tensors) if (each.dtype is torch.float64) is wide]
        if places:
            dtype = torch.float64 if wide else torch.float32
            found = torch._foreach_norm([tensors[place] for place in places], 2.0, dtype=dtype)
            for place, norm in zip(places, found, strict=True):
                norms[place] = float(norm)
    for index, value in enumerate(norms):
        if value == 0.0 or not math.isfinite(value):
            exact = torch.linalg.vector_norm(tensors[index], 2.0, dtype=torch.float64)
            norms[index] = float(exact)
    return norms


def zeros_in(part: torch.Tensor) -> int:
    """How many elements are exactly zero."""
    return part.numel() - int(torch.count_nonzero(part))


def silent_units(values: torch.Tensor, has_zeros: bool) -> torch.Tensor | None:
    """Which units are exactly zero in every sample: True for each along the unit's dimension.

    Units lie along the last dimension, those of an image (4 dimensions and more) along the second.

    Args:
        values: outputs of one module, samples first.
        has_zeros: False where no element is zero.

    Returns:
        None where the output has no units, or too few samples to call one silent.
    """
    if values.dim() < 2 or not values.numel():
        return None
    unit = 1 if values.dim() > 3 else values.dim() - 1
    units = values.shape[unit]
    rows = MAX_COUNTED // max(1, values.numel() // values.shape[0])
    part = values[: max(1, rows)]
    if part.numel() // units < MIN_SAMPLES or part.numel() > MAX_COUNTED:
        return None
    if not has_zeros:
        return torch.zeros(units, dtype=torch.bool)
    return torch.amax(part.abs(), [axis for axis in range(values.dim()) if axis != unit]) == 0


def histogram_of(
    values: torch.Tensor, step: int, what: str, name: str, *, factor: float = 1.0
) -> Histogram | None:
    """The magnitudes of a tensor multiplied by `factor`; None when it cannot be looked at."""
    part = evenly(values, MAX_COUNTED)
    if part is None:
        return None
    if part.dtype not in _LAYOUTS:
        part = part.float()
    if factor != 1.0:
        part = part * factor
    word, mantissa_bits, exponent_bits = _LAYOUTS[part.dtype]
    bits = part.contiguous().numpy().view(word)
    width = 1 << exponent_bits
    exponents = (bits >> word(mantissa_bits)).astype(np.intp)
    found = np.bincount(exponents, minlength=2 * width)
    positive, negative = found[:width].copy(), found[width:].copy()
    zeros = nan = posinf = neginf = 0
    if positive[0] or negative[0]:
        plus, minus = _equal(bits, 0), _equal(bits, (width << mantissa_bits))
        positive[0] -= plus
        negative[0] -= minus
        zeros = plus + minus
    if positive[-1] or negative[-1]:
        infinity = (width - 1) << mantissa_bits
        posinf = _equal(bits, infinity)
        neginf = _equal(bits, infinity | (width << mantissa_bits))
        nan = int(positive[-1] + negative[-1]) - posinf - neginf
    bins = np.concatenate((_binned(negative)[::-1], _binned(positive)))
    return Histogram(
        step=step,
        what=what,
        name=name,
        numel=values.numel(),
        counted=part.numel(),
        counts=bins.astype("<u4").tobytes(),
        zeros=zeros,
        nan=nan,
        posinf=posinf,
        neginf=neginf,
    )


def _equal(bits: npt.NDArray[np.unsignedinteger], pattern: int) -> int:
    return int(np.count_nonzero(bits == bits.dtype.type(pattern)))


def _binned(by_exponent: _Counts) -> _Counts:
    """Counts by biased exponent, the two special ones left out or folded, as bins of a record."""
    bias = len(by_exponent) // 2 - 1
    places = np.clip(np.arange(len(by_exponent)) - bias - HISTOGRAM_LOW, 0, HISTOGRAM_BINS - 1)
    bins = np.zeros(HISTOGRAM_BINS, np.int64)
    np.add.at(bins, places[:-1], by_exponent[:-1])
    return bins
