"""The trial of a branch that a selection shuts out: only what it hides is made safe.

Two replays: the first learns which elements of the operation are dangerous and what selections
hide, the second makes the hidden ones safe before the operation sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from tuimon.train.autopsy import looks
from tuimon.train.autopsy.kinds import kind_of
from tuimon.train.taps.compiler import leave_alone
from tuimon.train.trials.changes import Setting
from tuimon.train.trials.fixes import Fixes, plain_name
from tuimon.train.trials.guarding import Guard, Guarded, Spot

SAFE = 0.5  # in the domain of every operation below, and its derivative there is harmless
MAX_SELECTIONS = 64

# Where an operation, or its derivative, is not finite: by the operand at (index, test).
_Test = Callable[[torch.Tensor], torch.Tensor]
_DANGER: dict[str, tuple[int, _Test]] = {
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh"), (0, lambda x: torch.isinf(x.exp()))),
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt", "pow"), (0, lambda x: x <= 0)),
    "log1p": (0, lambda x: x <= -1),
    "reciprocal": (0, lambda x: x == 0),
    **dict.fromkeys(("div", "truedivide"), (1, lambda x: x == 0)),
    **dict.fromkeys(("acos", "asin", "atanh"), (0, lambda x: x.abs() >= 1)),
    "acosh": (0, lambda x: x <= 1),
}


class Hidden(Guarded):
    """Elements that a selection hides are made safe, in the second replay.

    Attributes:
        learns: this replay is the first.
        hidden: by the number of the call, which elements may be exchanged.
        is_open: a selection of the same shape lets something dangerous through.
    """

    def __init__(self, spot: Spot) -> None:
        super().__init__(spot)
        self.words = f"the elements that no branch selects were made {SAFE} before {spot.op}"
        self.learns = True
        self.hidden: dict[int, torch.Tensor] = {}
        self.dangerous: dict[int, torch.Tensor] = {}
        self.selections: list[torch.Tensor] = []
        self.is_open = False

    @property
    def is_possible(self) -> bool:
        return not self.spot.ops.isdisjoint(_DANGER)

    def begin(self) -> None:
        super().begin()
        if self.learns:
            self.dangerous, self.selections = {}, []

    def conclude(self) -> bool:
        """After the first replay: whether selections hide all that is dangerous."""
        self.learns = False
        for call, danger in self.dangerous.items():
            mask = self._hiding(danger)
            if mask is None:
                return False
            self.hidden[call] = mask
        self.selections = []
        return bool(self.hidden)

    def _hiding(self, danger: torch.Tensor) -> torch.Tensor | None:
        for mask in self.selections:
            try:
                spread = mask.expand(danger.shape)
            except RuntimeError:
                continue
            self.is_open = True
            if bool((spread | ~danger).all()) and not bool(spread.all()):
                return spread
        return None

    def mode(self, setting: Setting) -> AbstractContextManager[Any]:
        return _Hiding(self, setting)


class _Hiding(Guard):  # type: ignore[no-untyped-call]
    def __init__(self, hidden: Hidden, setting: Setting) -> None:
        super().__init__(hidden, setting)
        self._hidden = hidden
        name = next((op for op in hidden.spot.ops if op in _DANGER), "")
        self._danger = _DANGER.get(name)
        self._fixes: Fixes = {name: self._fix}
        hidden.forward = self._fixes
        hidden.backward = dict.fromkeys(("div", "reciprocal", "rsqrt", "pow"), self._fix_saved)

    def _dispatch(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        hidden = self._hidden
        if hidden.learns and torch._C._current_autograd_node() is None:
            self._note_selection(plain_name(kind_of(func).name), args)
        return super()._dispatch(func, types, args, kwargs)

    def _note_selection(self, name: str, args: Sequence[Any]) -> None:
        if len(self._hidden.selections) >= MAX_SELECTIONS:
            return
        mask: Any = None
        if name in ("where", "maskedfill") and len(args) > 1:
            mask = args[0] if name == "where" else args[1]
        elif name == "index" and len(args) > 1 and len(args[1]) == 1:
            mask = args[1][0]
        if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool:
            return
        with looks.apart():
            if name == "maskedfill":
                masks = [mask.clone()]
            else:
                masks = [~mask] if name == "index" else [~mask, mask.clone()]
        self._hidden.selections += masks

    def _fix(self, args: list[Any], kwargs: dict[str, Any]) -> int:
        """The call with this number: learn what is dangerous, or exchange what is hidden."""
        if self._danger is None:
            return 0
        at, test = self._danger
        if len(args) <= at or not isinstance(args[at], torch.Tensor):
            return 0
        hidden = self._hidden
        call = hidden.seen - 1
        if hidden.learns:
            danger = test(args[at])
            if bool(danger.any()):
                hidden.dangerous[call] = danger
            return 0
        return _exchange(args, at, hidden.hidden.get(call))

    def _fix_saved(self, args: list[Any], kwargs: dict[str, Any]) -> int:
        """In the derivative operands are read as they were saved."""
        if self._hidden.learns:
            return 0
        for mask in self._hidden.hidden.values():
            for at in range(len(args)):
                if isinstance(args[at], torch.Tensor) and args[at].shape == mask.shape:
                    _exchange(args, at, mask & ~(args[at] > 0))
        return 0


_Hiding.__torch_dispatch__ = _Hiding._dispatch  # type: ignore[method-assign,assignment]
leave_alone(_Hiding._dispatch.__code__, callees=True)


def _exchange(args: list[Any], at: int, mask: torch.Tensor | None) -> int:
    if mask is None or args[at].shape != mask.shape:
        return 0
    safe = torch.full((), SAFE, dtype=args[at].dtype, device=args[at].device)
    args[at] = torch.where(mask, safe, args[at])
    return int(mask.sum())
