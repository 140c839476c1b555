"""Watches one operation of a replay, and makes what it is given safe where a trial says so.

A dispatch mode: it stands below autograd, so that the graph is that of the step. What derivatives
read is mended when they run.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tuimon.model.autopsy import BACKWARD, OpSite
from tuimon.model.units import apart, number
from tuimon.train.autopsy import looks, sites
from tuimon.train.autopsy.kinds import Kind, kind_of, operands
from tuimon.train.autopsy.names import flat_tensors
from tuimon.train.taps.compiler import leave_alone
from tuimon.train.trials import fixes
from tuimon.train.trials.changes import Change, Setting, told
from tuimon.train.trials.fixes import Fixes, plain_name

_NODE = re.compile(r"(.*?)Backward\d*$")
# The operator that a dispatch shows, where autograd's node has the name of a function above it.
_SHOWN = {
    "norm": ("norm", "linalgvectornorm"),
    "cdist": ("cdistforward",),
    "nllloss": ("nlllossforward",),
    "nllloss2d": ("nllloss2dforward",),
}


@dataclass(frozen=True)
class Spot:
    """One operation of a step, in its forward.

    Attributes:
        ops: plain names that a dispatch may show.
        module: path of its module; None: any.
        file, line: None: any.
        in_backward: what is wrong with it shows in its derivative.
    """

    ops: frozenset[str]
    module: str | None = None
    file: str | None = None
    line: int | None = None
    in_backward: bool = False

    @property
    def op(self) -> str:
        return min(self.ops, key=len, default="the operation")


def spot_of(site: OpSite) -> Spot:
    """Where the operation stands that an autopsy has named."""
    name = plain_name(site.op)
    ops: tuple[str, ...] = (name,)
    in_backward = site.phase == BACKWARD
    if in_backward and (found := _NODE.match(site.node)):
        base = plain_name(found[1])
        ops = _SHOWN.get(base, (base,))
    return Spot(frozenset(ops), site.module, site.file, site.line, in_backward)


@dataclass
class Replaced:
    """Elements that were exchanged.

    Attributes:
        zeros: how many of them were exactly 0.
        near: magnitudes of the least and the largest of the others; None: there were none.
    """

    zeros: int = 0
    near: tuple[float, float] | None = None

    def see(self, was: torch.Tensor, now: torch.Tensor) -> None:
        """Note the elements that differ."""
        sizes = was[was != now].abs()
        others = sizes[sizes != 0]
        self.zeros += sizes.numel() - others.numel()
        if others.numel():
            low, high = (float(bound) for bound in torch.aminmax(others))
            known = self.near or (low, high)
            self.near = min(low, known[0]), max(high, known[1])

    @property
    def words(self) -> str:
        """Them as a phrase; "" where there were none."""
        found = [told(self.zeros, "exact zero")] if self.zeros else []
        if self.near is not None:
            found.append(" … ".join(apart(*self.near)))
        return " and ".join(found)


class Guarded(Change):
    """One operation is watched, and guarded where a cause is given.

    Attributes:
        seen: how often it ran in the newest replay.
        born: how often it made something bad of what was not, or its derivative did.
        largest: magnitude of the largest finite result.
        replaced: what the operation was given and the guard exchanged.
    """

    def __init__(self, spot: Spot, cause: str = "") -> None:
        super().__init__()
        self.spot = spot
        self.seen = 0
        self.born = 0
        self.largest = 0.0
        self.replaced = Replaced()
        near = fixes.NEAR.get(cause, {}) if spot.in_backward else {}
        self.forward: Fixes = {**fixes.FORWARD.get(cause, {}), **near}
        self.backward: Fixes = fixes.BACKWARD.get(cause, {})
        self.words = _phrase(cause, spot)

    @property
    def is_possible(self) -> bool:
        """Whether there is a fix for this operation."""
        return not self.spot.ops.isdisjoint(self.forward)

    def begin(self) -> None:
        super().begin()
        self.seen = self.born = 0
        self.largest = 0.0
        self.replaced = Replaced()

    def mode(self, setting: Setting) -> AbstractContextManager[Any]:
        return Guard(self, setting)


def _phrase(cause: str, spot: Spot) -> str:
    is_near = spot.in_backward and not spot.ops.isdisjoint(fixes.NEAR.get(cause, {}))
    phrase = fixes.PHRASE_NEAR if is_near else fixes.PHRASES.get(cause)
    if phrase is not None:
        phrase = fixes.PHRASES_OF_OPS.get(spot.op, phrase)
    if phrase is None:
        return f"{spot.op} was watched"
    eps = number(fixes.epsilon(torch.float32), 2)
    limit = number(fixes.largest_exponent(torch.float32), 2)
    return phrase.format(op=spot.op, eps=eps, limit=limit)


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode. Enter it last, so that other modes see what the guarded operation is given."""

    def __init__(self, guarded: Guarded, setting: Setting) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guarded = guarded
        self._spot = guarded.spot
        self._setting = setting
        self._nodes: set[int] = set()  # sequence numbers of the operation's own nodes

    def _dispatch(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kind = kind_of(func)
        name = plain_name(kind.name)
        node = torch._C._current_autograd_node()
        again = node is not None and torch.is_grad_enabled()  # a checkpointed forward
        if node is not None and not again:
            if node._sequence_nr() not in self._nodes:
                return func(*args, **(kwargs or {}))
            fix = self._guarded.backward.get(name)
            return self._call(func, kind, args, kwargs, fix=fix, counts=False)
        if name not in self._spot.ops or not self._is_here():
            return func(*args, **(kwargs or {}))
        self._guarded.seen += 1
        if not again and self._is_in_graph(args):
            self._nodes.add(torch._C._autograd._get_sequence_nr() - 1)
        fix = self._guarded.forward.get(name)
        return self._call(func, kind, args, kwargs, fix=fix, counts=True)

    def _is_in_graph(self, args: Sequence[Any]) -> bool:
        return any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)

    def _is_here(self) -> bool:
        spot, setting = self._spot, self._setting
        path = setting.names.path
        if spot.module is not None and spot.module != (path or ""):
            return False
        if spot.line is None:
            return True
        place = sites.innermost(setting.entry) or setting.followed()
        return place is None or (place.file, place.line) == (spot.file, spot.line)

    def _call(
        self,
        func: Any,
        kind: Kind,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        *,
        fix: fixes.Fix | None,
        counts: bool,
    ) -> Any:
        """Call it with what is safe; a derivative only follows what its forward was claimed of."""
        given, named = list(args), dict(kwargs or {})
        with looks.apart():
            if fix is not None:
                self._guarded.count += fix(given, named) * counts
                if counts and self._spot.in_backward:
                    _see_replaced(self._guarded.replaced, args, given)
                _keep_place(kind, args, given)
            read = operands(kind, given, named)
            before = [_Look(tensor) for tensor in read.read]
        result = func(*given, **named)
        with looks.apart(), contextlib.suppress(RuntimeError, TypeError):
            tensors = read.written or flat_tensors(result)
            after = [_Look(each) for each in tensors]
            # In the derivative of a forward fault everything is bad anyway.
            if (counts or self._spot.in_backward) and _is_born(before, after):
                self._guarded.born += 1
            for each in tensors:
                self._guarded.largest = max(self._guarded.largest, _size(each))
        return result


Guard.__torch_dispatch__ = Guard._dispatch  # type: ignore[method-assign,assignment]
leave_alone(Guard._dispatch.__code__, callees=True)


def _keep_place(kind: Kind, args: Sequence[Any], given: list[Any]) -> None:
    """An operation in place writes to the tensor that it was given, mended or not."""
    if kind.writes and given and args and given[0] is not args[0]:
        args[0].copy_(given[0])
        given[0] = args[0]


def _see_replaced(replaced: Replaced, args: Sequence[Any], given: Sequence[Any]) -> None:
    for was, now in zip(args, given, strict=True):
        if now is not was and isinstance(was, torch.Tensor) and was.shape == now.shape:
            replaced.see(was, now)


class _Look:
    """What is wrong with a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.is_bad = looks.is_bad(tensor)
        self.has_nan = self.is_bad and bool(torch.isnan(tensor).any())


def _size(tensor: torch.Tensor) -> float:
    """Magnitude of the largest element; 0 where one is not finite, or where there is none."""
    if not tensor.dtype.is_floating_point or tensor.numel() == 0:
        return 0.0
    size = float(tensor.abs().max())
    return size if math.isfinite(size) else 0.0


def _is_born(before: list[_Look], after: list[_Look]) -> bool:
    """Whether something bad came out that did not go in: an infinity may turn into a NaN."""
    if not any(each.is_bad for each in after) or any(each.has_nan for each in before):
        return False
    return any(each.has_nan for each in after) or not any(each.is_bad for each in before)
