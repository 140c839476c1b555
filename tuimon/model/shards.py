"""Figures of gradients that are spread over ranks, put together by readers.

A rank that holds parts of parameters publishes norms of these parts: no collective is issued to
know the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def whole_norm(shares: Iterable[float | None]) -> float | None:
    """Norm of all gradients before one update, from its `Step.grad_share` on every rank.

    None while a rank is missing, and where nothing is spread over ranks.
    """
    known = list(shares)
    if not known or any(share is None for share in known):
        return None
    total = sum(share for share in known if share is not None)
    return math.sqrt(total) if total >= 0 else math.nan
