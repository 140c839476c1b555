"""A tensor that was not finite before the graph began, and how to know it again."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tuimon.train.autopsy import looks

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Poison(NamedTuple):
    """Where the graph ends.

    Attributes:
        value: the tensor, where the graph has kept it.
        outcome: what an addition or subtraction made of it, where it has not.
        operand: the other operand of that.
    """

    value: torch.Tensor | None
    outcome: torch.Tensor | None = None
    operand: torch.Tensor | None = None

    def is_that(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor equals it bit for bit. Call it inside `looks.apart`."""
        if self.value is not None:
            return is_same(tensor, self.value)
        if self.outcome is None or self.operand is None or not looks.is_bad(tensor):
            return False
        try:
            given = self.operand - tensor
            if given.shape != self.outcome.shape:
                return False
            outcomes = (given, tensor - self.operand, tensor + self.operand)
            return any(is_same(each, self.outcome) for each in outcomes)
        except RuntimeError:  # shapes or devices that do not go together
            return False


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits; one NaN is as good as another."""
    if one.shape != other.shape or one.dtype is not other.dtype or one.device != other.device:
        return False
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return False
    if not one.dtype.is_floating_point or one.numel() == 0:
        return False
    if one.dim() == 0:
        one, other = one.reshape(1), other.reshape(1)
    bits = _BITS[one.element_size()]
    equal = one.contiguous().view(bits) == other.contiguous().view(bits)
    return bool((equal | (torch.isnan(one) & torch.isnan(other))).all())
