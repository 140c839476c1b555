"""What an operator does with its operands, read from its schema once and kept.

Names stand here only where the schema is silent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

# In-place operators that read nothing of the tensor they write.
_OVERWRITES = frozenset(
    (
        "copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
        "geometric_", "cauchy_", "log_normal_", "set_", "resize_", "resize_as_", "eye_",
        "_foreach_copy_", "_foreach_zero_", "_index_put_impl_zero_",
    )
)  # fmt: skip
# Their outputs are whatever memory held.
_UNFILLED = frozenset(
    (
        "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty",
        "new_empty_strided", "resize_", "resize_as_", "set_",
    )
)  # fmt: skip
# In training they write running statistics that they do not read, without saying so.
_STATISTICS = frozenset(("running_mean", "running_var"))
# To these a -Inf means "not this one".
_SOFTMAX = frozenset(
    (
        "_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax", "logsumexp",
        "_masked_softmax", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math",
    )
)  # fmt: skip


class Kind(NamedTuple):
    """One operator.

    Attributes:
        name: with namespace, without overload: "aten::log".
        is_view: gives a part of its operand's memory, computes nothing.
        writes: names of arguments that it writes.
        unread: names of arguments whose old content it does not read.
        unfilled: its outputs hold whatever memory held.
        pointwise: each element of the output depends on the same place of the operands.
        is_softmax: a -Inf among its operands is meant.
    """

    name: str
    arguments: tuple[str, ...]
    is_view: bool
    writes: frozenset[str]
    unread: frozenset[str]
    unfilled: bool
    pointwise: bool
    is_softmax: bool


@functools.cache
def kind_of(func: Any) -> Kind:
    """What an operator does."""
    schema = func._schema
    base = schema.name.rpartition("::")[2]
    aliases = [out.alias_info for out in schema.returns if out.alias_info is not None]
    writing = {a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    unread = {a.name for a in writing if a.kwarg_only or base in _OVERWRITES}
    return Kind(
        name=schema.name,
        arguments=tuple(a.name for a in schema.arguments),
        is_view=bool(aliases) and not writing,
        writes=frozenset(a.name for a in writing),
        unread=frozenset(unread),
        unfilled=base in _UNFILLED,
        pointwise=torch.Tag.pointwise in func.tags,
        is_softmax=base in _SOFTMAX,
    )


class Operands(NamedTuple):
    """What one call was given.

    Attributes:
        read: tensors that it reads.
        written: tensors that it writes.
        scalars: numbers among its arguments that are not finite.
    """

    read: list[torch.Tensor]
    written: list[torch.Tensor]
    scalars: list[float]


def operands(kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Operands:
    """Sort the arguments of a call."""
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    scalars: list[float] = []
    given = [*zip(kind.arguments, args, strict=False), *kwargs.items()]
    quiet = _STATISTICS if any(name in ("training", "train") and v for name, v in given) else ()
    for name, value in given:
        tensors = [*_tensors(value, scalars)]
        if name in kind.writes:
            written += tensors
        if name not in kind.unread and name not in quiet:
            read += tensors
    return Operands(read, written, scalars)


def _tensors(value: Any, scalars: list[float]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, float):
        if not math.isfinite(value):
            scalars.append(value)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _tensors(member, scalars)
