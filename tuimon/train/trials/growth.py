"""Sees a loss that grows from update to update while it is finite. Arithmetic on two numbers."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

WINDOW = 16  # updates that are remembered
# A loss of ten times the lowest of those, with a gradient of five times the smallest: noise of a
# healthy training rarely does both at once, and what follows is bounded.
LOSS_GREW = 10.0
GRADIENT_GREW = 5.0


class Growth:
    """The newest losses and gradient norms of the primary optimizer.

    Attributes:
        usual: the largest gradient norm of updates before growth that did the loss good; None
            before that, and where most did it none.
    """

    def __init__(self) -> None:
        self.usual: float | None = None
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._norms: deque[float] = deque(maxlen=WINDOW)

    def rises(self, loss: float | None, norm: float | None) -> bool:
        """Take in an update that is about to happen; whether it shows growth.

        A norm may be infinite where all gradients are finite: their squares need not be.
        """
        if loss is None or norm is None or not (0 < loss < math.inf and norm > 0):
            return False
        losses, norms = self._losses, self._norms
        grew = (
            bool(losses)
            and loss > LOSS_GREW * min(losses)
            and loss > max(losses)
            and norm > GRADIENT_GREW * min(norms)
        )
        if grew:
            self.usual = self._usual()
        losses.append(loss)
        norms.append(norm)
        return grew

    def _usual(self) -> float | None:
        pairs = [*pairwise(self._losses)]
        good = [norm for (now, then), norm in zip(pairs, self._norms, strict=False) if then <= now]
        return max(good) if 2 * len(good) >= len(pairs) > 0 else None
