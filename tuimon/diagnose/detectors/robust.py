"""Figures that a few wild values do not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Consistency factor of the median absolute deviation for normal noise (Rousseeuw & Croux 1993).
MAD_TO_SIGMA = 1.4826


def median(values: Sequence[float]) -> float:
    """The middle value; NaN of nothing."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return math.nan
    middle = ordered[count // 2]
    return middle if count % 2 else (ordered[count // 2 - 1] + middle) / 2


@dataclass(frozen=True)
class Band:
    """Where the logarithm of a positive quantity has been lately.

    Attributes:
        middle: median of the logarithms.
        sigma: their robust spread, at least `MIN_SIGMA`.
        top: the largest of them.
    """

    middle: float
    sigma: float
    top: float

    @property
    def level(self) -> float:
        """The quantity itself at the middle of the band."""
        return math.exp(min(self.middle, 700.0))


# A curve smoother than 2 % from step to step is not known to be quieter than that.
MIN_SIGMA = 0.02


def band_of(values: Sequence[float]) -> Band | None:
    """The band of positive values; None where one is zero or negative."""
    if not values or min(values) <= 0.0:
        return None
    logs = [math.log(value) for value in values]
    middle = median(logs)
    sigma = MAD_TO_SIGMA * median([abs(each - middle) for each in logs])
    return Band(middle, max(sigma, MIN_SIGMA), max(logs))
