"""The way from a bad loss down its graph: what is known to be bad, and where that came from.

Reads `values.Values` only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from tuimon.model.autopsy import MAX_PATH
from tuimon.train.autopsy import nodes
from tuimon.train.autopsy.values import Key, Values

# Where an infinity is put in on purpose.
CONSTANTS = frozenset(
    ("MaskedFill", "Where", "IndexPut", "IndexFill", "ConstantPadNd", "Copy", "Triu", "Tril",
     "MaskedScatter", "Scatter")
)  # fmt: skip
# What comes out of these finite operands is finite, but for sums that overflow.
PLUMBING = frozenset(
    ("Mean", "Sum", "Neg", "View", "Reshape", "UnsafeView", "Expand", "Squeeze", "Unsqueeze",
     "ToCopy", "Clone", "Alias", "Stack", "Cat", "Select", "Slice", "Index", "Gather", "Split",
     "Unbind", "T", "Transpose", "Permute")
)  # fmt: skip
# What these are given as a constant may be all that is wrong, and they save nothing of it.
_ADDING = frozenset(("Add", "Sub", "Rsub", "Lerp", "Addcmul", "Baddbmm"))
_HUGE = 1e30  # finite operands above this may overflow in a sum of single precision


@dataclass(eq=False)
class Stop:
    """An operation on the way from the loss down to what is bad.

    Attributes:
        bad: its output is known to hold something non-finite.
        below: operations that gave it something bad, or something unknown.
        met: (argument, tensor) of bad operands that no operation made; the tensor may be unknown.
    """

    node: Any
    output: int
    bad: bool | None
    below: list[Key] = field(default_factory=list)
    met: list[tuple[str, torch.Tensor | None, Any]] = field(default_factory=list)


class Descent:
    """Every operation that something non-finite may have come through.

    Attributes:
        stops: them, the loss first.
    """

    def __init__(self, values: Values, losses: list[torch.Tensor]) -> None:
        self.stops: dict[Key, Stop] = {}
        self._values = values
        self._users: dict[Key, Key] = {}
        self._descend([(loss.grad_fn, loss.output_nr) for loss in losses if loss.grad_fn])

    # --- on the way down ------------------------------------------------------------------------

    def _descend(self, roots: list[Key | tuple[Any, int]]) -> None:
        waiting: list[tuple[Any, int]] = list(roots)
        while waiting:
            node, output = waiting.pop()
            key = id(node), output
            if key in self.stops:
                continue
            stop = self.stops[key] = Stop(node, output, self._values.is_bad(node, output))
            self._meet_edgeless(stop)
            for position, (child, number) in enumerate(node.next_functions):
                if child is None:
                    self._meet(stop, position)
                elif self._values.passes(node, position) is not False:
                    self._go_down(stop, child, number, waiting)
            if stop.bad and not stop.below and not stop.met:
                self._suspect_constant(stop)

    def _go_down(self, stop: Stop, child: Any, number: int, waiting: list[Any]) -> None:
        if nodes.is_leaf(child):
            variable = child.variable.detach()
            if self._values.looks_bad(variable):
                stop.met.append(("parameter", variable, child.variable))
            return
        key = id(child), number
        stop.below.append(key)
        self._users.setdefault(key, (id(stop.node), stop.output))
        waiting.append((child, number))

    def _meet(self, stop: Stop, position: int) -> None:
        """An operand that needs no gradient."""
        names = nodes.op_of(stop.node).edges
        name = names[position] if position < len(names) else ""
        value = nodes.saved(stop.node, name) if name and names.count(name) == 1 else None
        if value is not None and self._values.looks_bad(value.detach()):
            stop.met.append((name, value.detach(), value))

    def _meet_edgeless(self, stop: Stop) -> None:
        """Operands that can have no gradient, such as the weights of classes."""
        edges = nodes.op_of(stop.node).edges
        arguments = {name for name, is_tensor in nodes.op_of(stop.node).arguments if is_tensor}
        for name in nodes.saved_tensor_names(stop.node):
            if name in arguments and name not in edges:
                value = nodes.saved(stop.node, name)
                if value is not None and self._values.looks_bad(value.detach()):
                    stop.met.append((name, value.detach(), value))

    def _suspect_constant(self, stop: Stop) -> None:
        """A sum of what is finite and of something unknown is bad: the unknown one is."""
        if nodes.kind(stop.node) not in _ADDING:
            return
        edges = stop.node.next_functions
        unknown = [at for at, (child, _) in enumerate(edges) if child is None]
        known = [
            self._values.operand(stop.node, at) for at in range(len(edges)) if at not in unknown
        ]
        output = self._values.of(stop.node, stop.output)
        if not unknown or output is None or any(value is None for value in known):
            return
        if output.dtype in (torch.float32, torch.float64, torch.bfloat16) and all(
            value is not None and bool((value.abs() < _HUGE).all()) for value in known
        ):
            stop.met.append(("", None, output))

    def in_order(self) -> list[Stop]:
        return sorted(self.stops.values(), key=number)

    def births(self) -> list[Stop]:
        """Operations whose output is bad and to which nothing bad came, the earliest first."""
        found = [
            self._beneath(stop)
            for stop in self.in_order()
            if stop.bad and not stop.met and not self._is_fed(stop)
        ]
        return sorted(found, key=number)

    def _beneath(self, stop: Stop) -> Stop:
        """What must be meant by an operation that only passes on what it is given."""
        if nodes.kind(stop.node) not in PLUMBING:
            return stop
        reached = self._unknown_below(stop)
        ends = [each for each in reached if not each.below]
        return ends[0] if len(ends) == 1 else stop

    def _unknown_below(self, stop: Stop) -> list[Stop]:
        waiting = list(stop.below)
        found: dict[Key, Stop] = {}
        while waiting:
            key = waiting.pop()
            below = self.stops.get(key)
            if key not in found and below is not None and below.bad is None:
                found[key] = below
                waiting += below.below
        return list(found.values())

    def _is_fed(self, stop: Stop) -> bool:
        """Whether something bad, or a bad operand, lies below without a known good one between."""
        waiting = list(stop.below)
        seen: set[Key] = set()
        while waiting:
            key = waiting.pop()
            below = self.stops.get(key)
            if key in seen or below is None:
                continue
            seen.add(key)
            if below.bad or below.met or self._explains(below, stop):
                return True
            waiting += below.below
        return False

    def _explains(self, below: Stop, stop: Stop) -> bool:
        """Whether all that is bad in an output lies where a constant was put in below it."""
        if below.bad is not None or nodes.kind(below.node) not in CONSTANTS:
            return False
        filled = self._values.filled(below.node)
        output = self._values.of(stop.node, stop.output)
        if filled is None or output is None:
            return True
        try:
            return not bool((~torch.isfinite(output) & ~filled).any())
        except RuntimeError:  # shapes that do not agree: the places are lost
            return True

    def turned(self) -> Stop | None:
        """The first operation that made a NaN of infinities."""
        for stop in self.in_order():
            value = self._values.of(stop.node, stop.output) if stop.bad else None
            if value is None or not bool(torch.isnan(value).any()):
                continue
            edges = range(len(stop.node.next_functions))
            given = [self._values.operand(stop.node, at) for at in edges]
            if not any(each is not None and _has_nan(each) for each in given) and not any(
                below.bad and _is_nan_below(self._values, below)
                for key in stop.below
                if (below := self.stops.get(key)) is not None
            ):
                return stop
        return None

    def chain(self, stop: Stop) -> list[Stop]:
        """From an operation to the loss."""
        chain = [stop]
        key: Key | None = (id(stop.node), stop.output)
        while key is not None and (key := self._users.get(key)) is not None and len(chain) < 10_000:
            chain.append(self.stops[key])
        return chain if len(chain) <= MAX_PATH else [*chain[: MAX_PATH - 1], chain[-1]]

    def above(self, stop: Stop) -> Stop | None:
        key = self._users.get((id(stop.node), stop.output))
        return None if key is None else self.stops[key]


def number(stop: Stop) -> float:
    """The order in which operations ran."""
    try:
        return float(stop.node._sequence_nr())
    except (AttributeError, RuntimeError):
        return math.inf


def _has_nan(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point and bool(torch.isnan(tensor).any())


def _is_nan_below(values: Values, stop: Stop) -> bool:
    value = values.of(stop.node, stop.output)
    return value is not None and _has_nan(value)
