"""What makes the operand of an operation safe, by the cause that is claimed. Changes no tensor.

An operator goes by its name without namespace and underscores: "log", "nativelayernorm".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

# Takes the arguments of a call, exchanges what is unsafe, and says how much of it there was.
Fix = Callable[[list[Any], dict[str, Any]], int]
Fixes = dict[str, Fix]

_EPSILON_AT = {"nativelayernorm": 4, "nativebatchnorm": 7, "nativegroupnorm": 7}


def plain_name(op: str) -> str:
    """The name that fixes go by: of "aten::_foreach_div_" it is "div"."""
    name = op.rpartition("::")[2].removeprefix("_foreach_").removeprefix("_fused_")
    return name.replace("_", "").lower()


def epsilon(dtype: torch.dtype) -> float:
    """What is put where an exact 0 was: it can be told from 0, and its inverse is harmless."""
    return float(torch.finfo(dtype).eps)


def largest_exponent(dtype: torch.dtype) -> float:
    """An argument of exp whose result can still be multiplied, squared and summed."""
    return math.log(torch.finfo(dtype).max) / 4


def _is_real(args: list[Any], at: int) -> bool:
    return (
        len(args) > at
        and isinstance(args[at], torch.Tensor)
        and args[at].dtype.is_floating_point
        and args[at].layout is torch.strided
    )


def _put(args: list[Any], at: int, mask: torch.Tensor, value: float) -> int:
    count = int(mask.sum())
    if count:
        given = args[at]
        safe = torch.full((), value, dtype=given.dtype, device=given.device)
        args[at] = torch.where(mask, safe, given)
    return count


def no_zero(at: int) -> Fix:
    """An exact 0 becomes an epsilon."""

    def fix(args: list[Any], kwargs: dict[str, Any]) -> int:
        if not _is_real(args, at):
            return 0
        return _put(args, at, args[at] == 0, epsilon(args[at].dtype))

    return fix


def no_near_zero(at: int, power: float) -> Fix:
    """An exact 0, and what is so near to it that a derivative overflows, becomes an epsilon.

    Args:
        at: which argument.
        power: of the smallest normal number, below which that happens: 1/x overflows below the
            number itself, 1/x² below its root.
    """

    def fix(args: list[Any], kwargs: dict[str, Any]) -> int:
        if not _is_real(args, at):
            return 0
        least = float(torch.finfo(args[at].dtype).tiny) ** power
        return _put(args, at, args[at].abs() <= least, epsilon(args[at].dtype))

    return fix


def _in_half(fix: Fix, at: int) -> Fix:
    """Only of numbers in half precision."""

    def only(args: list[Any], kwargs: dict[str, Any]) -> int:
        if not _is_real(args, at) or args[at].dtype not in (torch.float16, torch.bfloat16):
            return 0
        return fix(args, kwargs)

    return only


def above(low: float, *, edge: bool = False) -> Fix:
    """What lies below the domain is put just inside; with `edge` also what lies on its edge."""

    def fix(args: list[Any], kwargs: dict[str, Any]) -> int:
        if not _is_real(args, 0):
            return 0
        given = args[0]
        outside = given <= low if edge else given < low
        return _put(args, 0, outside, low + epsilon(given.dtype))

    return fix


def _on(value: float, inside: float) -> Fix:
    """What equals a value is moved by an epsilon."""

    def fix(args: list[Any], kwargs: dict[str, Any]) -> int:
        if not _is_real(args, 0):
            return 0
        return _put(args, 0, args[0] == value, value + inside * epsilon(args[0].dtype))

    return fix


def between(low: float, high: float) -> Fix:
    """What lies outside of an interval or on its ends is put just inside."""

    def fix(args: list[Any], kwargs: dict[str, Any]) -> int:
        if not _is_real(args, 0):
            return 0
        step = epsilon(args[0].dtype)
        count = _put(args, 0, args[0] <= low, low + step)
        return count + _put(args, 0, args[0] >= high, high - step)

    return fix


def small(args: list[Any], kwargs: dict[str, Any]) -> int:
    """Arguments of an exponential are clamped."""
    if not _is_real(args, 0):
        return 0
    limit = largest_exponent(args[0].dtype)
    # Only beyond four times the limit the result is infinite.
    if not bool((args[0].abs() > 4 * limit).any()):
        return 0
    return _put(args, 0, args[0] > limit, limit) + _put(args, 0, args[0] < -limit, -limit)


def no_infinity(args: list[Any], kwargs: dict[str, Any]) -> int:
    """Infinities become 0."""
    return sum(
        _put(args, at, torch.isinf(args[at]), 0.0) for at in range(len(args)) if _is_real(args, at)
    )


def one_open(args: list[Any], kwargs: dict[str, Any]) -> int:
    """A row of nothing but -Inf becomes a row of zeros."""
    if not _is_real(args, 0) or args[0].dim() == 0:
        return 0
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    if not isinstance(dim, int):
        dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else None
    if dim is None:
        return 0
    closed = (args[0] == -math.inf).all(dim, keepdim=True)
    count = int(closed.sum())
    if count:
        args[0] = torch.where(closed, torch.zeros_like(args[0]), args[0])
    return count


def one_element(args: list[Any], kwargs: dict[str, Any]) -> int:
    """A mean of nothing becomes a mean of zeros."""
    if not _is_real(args, 0) or args[0].numel():
        return 0
    args[0] = args[0].new_zeros([max(1, size) for size in args[0].shape] or [1])
    return 1


def one_counted(args: list[Any], kwargs: dict[str, Any]) -> int:
    """Where every target is ignored, they are taken for the first class."""
    if len(args) < 5 or not isinstance(args[1], torch.Tensor):
        return 0
    target = args[1]
    if target.numel() and not bool((target == args[4]).all()):
        return 0
    args[1] = torch.zeros_like(target)
    return target.numel()


def all_of_it(args: list[Any], kwargs: dict[str, Any]) -> int:
    """A spread over as many elements as there are, instead of one less."""
    if not _is_real(args, 0):
        return 0
    correction = kwargs.get("correction")
    correction = 1 if correction is None else correction
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    given = args[0]
    sizes = given.shape if dims is None or not len(dims) else [given.shape[d] for d in dims]
    if math.prod(sizes) > correction:
        return 0
    kwargs["correction"] = 0
    return 1


def larger_epsilon(name: str) -> Fix:
    """The epsilon of a normalisation is one that its numbers can tell from 0."""
    at = _EPSILON_AT[name]

    def fix(args: list[Any], kwargs: dict[str, Any]) -> int:
        if not _is_real(args, 0) or len(args) <= at:
            return 0
        least = epsilon(args[0].dtype)
        if args[at] >= least:
            return 0
        args[at] = least
        return 1

    return fix


_NORMALISATIONS: Fixes = {name: larger_epsilon(name) for name in _EPSILON_AT}
_DIVISOR, _FIRST = no_zero(1), no_zero(0)

FORWARD: dict[str, Fixes] = {
    "log-zero": {
        **dict.fromkeys(("log", "log2", "log10"), _FIRST),
        "log1p": _on(-1.0, 1.0),
        "logit": between(0.0, 1.0),
        "xlogy": _DIVISOR,
    },
    "sqrt-norm-zero": dict.fromkeys(
        ("sqrt", "pow", "norm", "linalgvectornorm", "cdistforward", "dist", "atan2", "hypot"),
        _FIRST,
    ),
    "div-zero": {
        **dict.fromkeys(("div", "truedivide", "fmod", "remainder"), _DIVISOR),
        **dict.fromkeys(("reciprocal", "rsqrt", "pow"), _FIRST),
        **dict.fromkeys(("std", "var", "stdmean", "varmean"), all_of_it),
        **_NORMALISATIONS,
    },
    "domain-error": {
        **dict.fromkeys(("sqrt", "rsqrt", "log", "log2", "log10", "pow", "floatpower"), above(0.0)),
        "log1p": above(-1.0),
        **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), between(-1.0, 1.0)),
        "acosh": above(1.0, edge=True),
    },
    "exp-overflow": dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh"), small),
    "zero-times-inf": dict.fromkeys(
        ("mul", "mm", "bmm", "addmm", "baddbmm", "matmul", "dot", "mv", "sub", "add", "rsub"),
        no_infinity,
    ),
    "masked-softmax": dict.fromkeys(
        ("softmax", "logsoftmax", "safesoftmax", "logsumexp"), one_open
    ),
    "empty-reduction": {
        **dict.fromkeys(("mean", "nanmean", "median"), one_element),
        **dict.fromkeys(("nlllossforward", "nllloss2dforward"), one_counted),
    },
    "eps-underflow": {
        **dict.fromkeys(("div", "truedivide"), _in_half(_DIVISOR, 1)),
        **dict.fromkeys(("rsqrt", "log", "sqrt"), _in_half(_FIRST, 0)),
        **{name: _in_half(fix, 0) for name, fix in _NORMALISATIONS.items()},
    },
}  # fmt: skip

# Operators within the derivative of such an operation: it reads operands as they were saved.
_SINGULAR: Fixes = {
    "div": _DIVISOR,
    "reciprocal": _FIRST,
    "rsqrt": above(0.0, edge=True),
    "log": above(0.0, edge=True),
    "pow": _FIRST,
}
_ROOT, _TWO_THIRDS = 1 / 2, 2 / 3
# Of an operation whose derivative went wrong: its own result is finite next to 0.
NEAR: dict[str, Fixes] = {
    "log-zero": dict.fromkeys(("log", "log2", "log10"), no_near_zero(0, 1.0)),
    "div-zero": {
        **dict.fromkeys(("div", "truedivide"), no_near_zero(1, _ROOT)),
        "reciprocal": no_near_zero(0, _ROOT),
        "rsqrt": no_near_zero(0, _TWO_THIRDS),
    },
}
BACKWARD: dict[str, Fixes] = {
    "log-zero": {**_SINGULAR, "div": no_near_zero(1, 1.0), "reciprocal": no_near_zero(0, 1.0)},
    "sqrt-norm-zero": _SINGULAR,
    "div-zero": {**_SINGULAR, **NEAR["div-zero"]},
    "eps-underflow": _SINGULAR,
    "domain-error": {**_SINGULAR, "pow": above(0.0, edge=True)},
    "exp-overflow": {"mul": no_infinity},
    "zero-times-inf": {"mul": no_infinity},
}

# As a phrase, with the operator in it.
PHRASES = {
    "log-zero": "{op} was given {eps} in place of an exact 0",
    "sqrt-norm-zero": "{op} was given {eps} in place of an exact 0",
    "div-zero": "{op} was given {eps} in place of an exact 0",
    "eps-underflow": "{op} was given {eps} in place of an exact 0",
    "domain-error": "what {op} was given was clamped to its domain",
    "exp-overflow": "the argument of {op} was clamped to ±{limit}",
    "zero-times-inf": "{op} was given 0 in place of an infinity",
    "masked-softmax": "{op} was given zeros in place of rows of nothing but -Inf",
    "empty-reduction": "{op} was given one 0, or one class, where nothing counted",
}
PHRASE_NEAR = "{op} was given {eps} in place of 0 and of what is next to it"
PHRASES_OF_OPS = {
    **dict.fromkeys(("std", "var", "stdmean", "varmean"), "{op} divided by n in place of n - 1"),
    **dict.fromkeys(_EPSILON_AT, "{op} was given an epsilon that its numbers can tell from 0"),
}
