"""Runs the operation that an autopsy has named again, on the same numbers and in other ways.

What differs then is no fault of the script's arithmetic. It is never more than a hint: code that
draws from a source of its own differs as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tuimon.train.autopsy import looks
from tuimon.train.autopsy.names import flat_tensors
from tuimon.train.trials.changes import Setting
from tuimon.train.trials.guarding import Guard, Guarded, Spot

AGAIN = 2  # more runs of the same on the same
# Within these no sum, power or quotient that one operation is made of leaves single precision.
_LEAST, _MOST = 1e-3, 1e3
_ROOM = 1e-3  # of the largest number of the format, where another way ends
_SDPA = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")


class Repeated(Guarded):
    """Nothing is changed; where something bad is born, the operation is run again.

    Attributes:
        differs: what came of it, in words; "" where all was the same.
        is_unsteady: it was the same operation on the same numbers that differed.
    """

    words = "the operation was run again on the same numbers"

    def __init__(self, spot: Spot) -> None:
        super().__init__(spot)
        self.words = type(self).words
        self.differs = ""
        self.is_unsteady = False

    def mode(self, setting: Setting) -> AbstractContextManager[Any]:
        return _Repeating(self, setting)


class _Repeating(Guard):  # type: ignore[no-untyped-call]
    """Enter it last."""

    def __init__(self, repeated: Repeated, setting: Setting) -> None:
        super().__init__(repeated, setting)
        self._repeated = repeated

    def _call(
        self,
        func: Any,
        kind: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        **about: Any,
    ) -> Any:
        asked = not self._repeated.differs and not kind.writes and _is_repeatable(func)
        with looks.apart():
            kept = _copied((tuple(args), dict(kwargs or {}))) if asked else None
        result = super()._call(func, kind, args, kwargs, **about)
        if kept is not None and self._repeated.born:
            with looks.apart(), contextlib.suppress(RuntimeError, TypeError, NotImplementedError):
                self._compare(func, kept, flat_tensors(result))
        return result

    def _compare(self, func: Any, kept: Any, first: list[torch.Tensor]) -> None:
        args, kwargs = kept
        name = func._schema.name
        bad = _bad_of(first)
        if not bad:
            return
        for _ in range(AGAIN):
            again = _bad_of(flat_tensors(func(*_copied(args), **_copied(kwargs))))
            if again != bad:
                self._repeated.is_unsteady = True
                self._repeated.differs = (
                    f"{name} gave {bad:,} values that are not finite, and {again:,} on the same "
                    f"numbers again"
                )
                return
        if not _is_moderate(kept):
            return
        for words, run in _other_ways(func, kept):
            with contextlib.suppress(RuntimeError, TypeError, NotImplementedError):
                other = flat_tensors(run())
                if _is_fine(other):
                    self._repeated.differs = (
                        f"{name} gives {bad:,} values that are not finite on moderate numbers, "
                        f"each time, and none {words}"
                    )
                    return


def _other_ways(func: Any, kept: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    args, kwargs = kept

    def wide(value: Any) -> Any:
        single = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.double() if single else value

    def without(context: AbstractContextManager[Any]) -> Any:
        with context:
            return func(*_copied(args), **_copied(kwargs))

    yield "in float64", lambda: func(*tree_map(wide, args), **tree_map(wide, kwargs))
    yield "without oneDNN", lambda: without(torch.backends.mkldnn.flags(enabled=False))
    if any(each.is_cuda for each in _tensors(kept)):
        yield "without cuDNN", lambda: without(torch.backends.cudnn.flags(enabled=False))
    if any(part in func._schema.name for part in _SDPA) and not kwargs.get("dropout_p"):
        yield "by the plain kernel", lambda: _plain_attention(args, kwargs)


def _plain_attention(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The same attention by its definition."""
    causal = next((each for each in args[3:] if isinstance(each, bool)), False)
    return torch.ops.aten._scaled_dot_product_attention_math(
        *args[:3],
        attn_mask=kwargs.get("attn_mask"),
        is_causal=kwargs.get("is_causal", causal),
        scale=kwargs.get("scale"),
    )[0]


def _is_repeatable(func: Any) -> bool:
    tags = getattr(func, "tags", ())
    return torch.Tag.nondeterministic_seeded not in tags and not torch.distributed.is_initialized()


def _is_moderate(kept: Any) -> bool:
    """Whether all that goes in is single precision and neither large nor next to 0."""
    found = [each for each in _tensors(kept) if each.is_floating_point()]
    if not found or any(each.dtype != torch.float32 for each in found):
        return False
    sizes = [each.abs() for each in found if each.numel()]
    return all(bool(((size == 0) | ((size >= _LEAST) & (size <= _MOST))).all()) for size in sizes)


def _is_fine(found: Sequence[torch.Tensor]) -> bool:
    bound = torch.finfo(torch.float32).max * _ROOM
    floats = [each for each in found if each.is_floating_point() and each.numel()]
    return bool(floats) and all(bool((each.abs() <= bound).all()) for each in floats)


def _bad_of(found: Sequence[torch.Tensor]) -> int:
    """How many values are not finite: of the result alone, where that is what is bad.

    What stands beside a result is mostly scratch for its derivative, not all of it written.
    """
    return _count_bad(found[:1]) or _count_bad(found)


def _count_bad(found: Sequence[torch.Tensor]) -> int:
    floats = [each for each in found if each.is_floating_point()]
    return sum(int((~torch.isfinite(each)).sum()) for each in floats)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def _copied(value: Any) -> Any:
    return tree_map(
        lambda each: each.detach().clone() if isinstance(each, torch.Tensor) else each, value
    )
