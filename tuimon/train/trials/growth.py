"""Sees a loss that grows from update to update while it is finite. Arithmetic on two numbers."""

from __future__ import annotations

import math
from collections import deque

WINDOW = 16  # updates that are remembered
# A loss of ten times the lowest of those, with a gradient of five times the smallest: noise of a
# healthy training rarely does both at once, and what follows is bounded.
LOSS_GREW = 10.0
GRADIENT_GREW = 5.0


class Growth:
    """The newest losses and gradient norms of the primary optimizer."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._norms: deque[float] = deque(maxlen=WINDOW)

    def rises(self, loss: float | None, norm: float | None) -> bool:
        """Take in an update that is about to happen; whether it shows growth."""
        if loss is None or norm is None or not (0 < loss < math.inf and 0 < norm < math.inf):
            return False
        losses, norms = self._losses, self._norms
        grew = (
            bool(losses)
            and loss > LOSS_GREW * min(losses)
            and loss > max(losses)
            and norm > GRADIENT_GREW * min(norms)
        )
        losses.append(loss)
        norms.append(norm)
        return grew
