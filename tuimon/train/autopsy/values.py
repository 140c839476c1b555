"""The values of a forward, as far as its graph still holds them or they follow from what it holds.

Computes on the side with aten operators; draws no random number and runs no code of the script's.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tuimon.train.autopsy import looks, nodes

MAX_DEPTH = 60  # operations that are computed again to know one value
MAX_KEPT = 1 << 24  # elements of computed values that are kept at the same time
MAX_COMPUTED = 1 << 26  # elements of one operand above which nothing is computed again

Key = tuple[int, int]

_RESHAPED = frozenset(("View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze"))
VIEWS = _RESHAPED | {"Alias", "Expand", "Permute", "T", "Transpose", "ToCopy"}
# What is finite stays finite, what is not stays so.
_TRANSPARENT = (VIEWS - {"ToCopy"}) | {"Abs", "Clone", "Contiguous", "Neg"}


class Values:
    """Values and their state in one graph. Holds references: drop it after use.

    Attributes:
        order: every node that was reached, the loss first.
        is_cut: there were more nodes than the limit.
        packed: nodes whose saved tensors lie behind a hook.
        unread: tensors on a device, which were not looked at.
    """

    def __init__(
        self,
        losses: Iterable[torch.Tensor],
        *,
        limit_nodes: int,
        expired: Callable[[], bool],
        devices: bool,
    ) -> None:
        self.order: list[Any] = []
        self.is_cut = False
        self.packed = 0
        self.unread = 0
        self._users: dict[Key, list[tuple[Any, int]]] = {}
        self._known: dict[Key, torch.Tensor | None] = {}
        self._state: dict[Key, bool | None] = {}
        self._kept = 0
        self._expired = expired
        self._devices = devices
        roots = []
        for loss in losses:
            if loss.grad_fn is not None:
                roots.append(loss.grad_fn)
                self._known[id(loss.grad_fn), loss.output_nr] = loss.detach()
        self._walk(roots, limit_nodes)

    def _walk(self, roots: list[Any], limit: int) -> None:
        waiting = deque(roots)
        known: set[int] = set()
        while waiting:
            node = waiting.popleft()
            if id(node) in known:
                continue
            if len(self.order) >= limit or self._expired():
                self.is_cut = True
                return
            known.add(id(node))
            self.order.append(node)
            for position, (child, output) in enumerate(node.next_functions):
                if child is not None:
                    self._users.setdefault((id(child), output), []).append((node, position))
                    waiting.append(child)

    def users(self, node: Any, output: int) -> list[tuple[Any, int]]:
        """(node, position of its edge) of everything that took this output."""
        return self._users.get((id(node), output), [])

    def of(self, node: Any, output: int, depth: int = 0) -> torch.Tensor | None:
        """An output of a forward operation; None where it is not known."""
        key = id(node), output
        if key in self._known:
            return self._known[key]
        self._known[key] = None
        value = self._find(node, output)
        if value is None and depth < MAX_DEPTH and not self._expired():
            value = self._computed(node, output, depth)
        self._known[key] = value
        return value

    def is_bad(self, node: Any, output: int) -> bool | None:
        """Whether an output holds something non-finite; None where that is not known."""
        key = id(node), output
        if key not in self._state:
            self._state[key] = None
            self._state[key] = self._judge(node, output)
        return self._state[key]

    def looks_bad(self, tensor: torch.Tensor | None) -> bool | None:
        """The same of a tensor; None where it may not be read."""
        if tensor is None:
            return None
        if tensor.device.type not in ("cpu", "meta") and not self._devices:
            self.unread += 1
            return None
        return None if looks.is_hidden(tensor) else looks.is_bad(tensor)

    def operand(self, node: Any, position: int) -> torch.Tensor | None:
        """What a forward operation was given at one of its edges."""
        names = nodes.op_of(node).edges
        name = names[position] if position < len(names) else ""
        if name and names.count(name) == 1:
            value = self._saved(node, name)
            if value is not None:
                return value
        child, output = node.next_functions[position]
        return None if child is None else self.of(child, output)

    def _saved(self, node: Any, name: str) -> torch.Tensor | None:
        value = nodes.saved(node, name)
        if value is None and nodes.is_packed(node):
            self.packed += 1
        return None if value is None else value.detach()

    def _find(self, node: Any, output: int) -> torch.Tensor | None:
        """A value that lies ready: a leaf, a saved result, or what a later operation has saved."""
        if nodes.is_leaf(node):
            variable: torch.Tensor = node.variable.detach()
            return variable
        for name in _result_names(node, output):
            value = self._saved(node, name)
            if value is not None:
                return value
        for user, position in self.users(node, output):
            names = nodes.op_of(user).edges
            name = names[position] if position < len(names) else ""
            if name and names.count(name) == 1:
                value = self._saved(user, name)
                if value is not None:
                    return value
        return None

    def _computed(self, node: Any, output: int, depth: int) -> torch.Tensor | None:
        if self._kept > MAX_KEPT:
            return None
        try:
            value = self._compute(node, output, depth)
        except (RuntimeError, TypeError, LookupError, ValueError, Warning):
            return None
        if value is not None:
            self._kept += value.numel()
        return value

    def _compute(self, node: Any, output: int, depth: int) -> torch.Tensor | None:
        like = nodes.output_like(node, output)
        name = nodes.kind(node)
        if name in _RESHAPED | {"Expand", "ToCopy", "Clone", "Contiguous"}:
            child, number = node.next_functions[0]
            value = None if child is None else self.of(child, number, depth + 1)
            if value is None or like is None:
                return None
            if name == "ToCopy":
                return value.to(like[1])
            return value.expand(like[0]) if name == "Expand" else value.reshape(like[0])
        op = nodes.op_of(node)
        if op.call is None or not _may_run(op.call):
            return None
        given = self._arguments(node, op, like, depth)
        if given is None:
            return None
        result = op.call(**given)
        value = result[output] if isinstance(result, list | tuple) else result
        if not isinstance(value, torch.Tensor):
            return None
        return value if like is None or value.dtype is like[1] else value.to(like[1])

    def _arguments(
        self, node: Any, op: nodes.Op, like: tuple[Any, torch.dtype] | None, depth: int
    ) -> dict[str, Any] | None:
        """What to call an operator with; None where an operand is not known."""
        given: dict[str, Any] = {}
        tensors: dict[str, list[torch.Tensor | None]] = {}
        for position, name in enumerate(op.edges):
            child, output = node.next_functions[position]
            value = self._saved(node, name) if op.edges.count(name) == 1 else None
            if value is None and child is not None:
                value = self.of(child, output, depth + 1)
            if value is not None and (
                value.numel() > MAX_COMPUTED or value.device.type not in ("cpu", "meta")
            ):
                return None
            tensors.setdefault(name, []).append(value)
        for argument, schema in zip(op.arguments, op.call._schema.arguments, strict=True):
            name, is_tensor = argument
            if is_tensor:
                found = tensors.get(name) or [self._saved(node, name)]
                optional = str(schema.type).startswith("Optional")
                if any(each is None for each in found) and not optional:
                    return None
                given[name] = found if "List" in str(schema.type) else found[0]
            elif name == "dtype":
                given[name] = None if like is None else like[1]
            else:
                try:
                    given[name] = nodes.number(node, name)
                except KeyError:
                    if not schema.has_default_value():
                        raise
        return given

    def _judge(self, node: Any, output: int) -> bool | None:
        value = self.of(node, output)
        if value is not None:
            return self.looks_bad(value)
        if nodes.kind(node) in ("Where", "MaskedFill"):
            passed = [self.passes(node, at) for at in range(len(node.next_functions))]
            return True if True in passed else None
        edges = node.next_functions
        if nodes.kind(node) == "Div":
            divisor = self.operand(node, 1)
            if self.looks_bad(divisor) is False and divisor is not None:
                return True if bool((divisor == 0).any()) else None
        if nodes.kind(node) in _TRANSPARENT and len(edges) == 1 and edges[0][0] is not None:
            return self.is_bad(*edges[0])
        return None

    def filled(self, node: Any) -> torch.Tensor | None:
        """Where an operation that selects put in something that needs no gradient."""
        name = nodes.kind(node)
        if name == "MaskedFill":
            return self._saved(node, "mask")
        constants = [at for at, (child, _) in enumerate(node.next_functions) if child is None]
        if name != "Where" or len(constants) != 1:
            return None
        condition = self._saved(node, "condition")
        return None if condition is None else condition if constants == [0] else ~condition

    def passes(self, node: Any, position: int) -> bool | None:
        """Whether something non-finite comes through an operation that selects."""
        child, output = node.next_functions[position]
        name = nodes.kind(node)
        if name not in ("Where", "MaskedFill"):
            return None if child is None else self.is_bad(child, output)
        mask = self._saved(node, "condition" if name == "Where" else "mask")
        value = self.operand(node, position)
        if mask is None or value is None or self.looks_bad(value) is None:
            return None if child is None else self.is_bad(child, output)
        chosen = mask if name == "Where" and position == 0 else ~mask
        return bool((~torch.isfinite(value) & chosen).any())


@contextmanager
def quiet() -> Iterator[None]:
    """What is computed again warns of nothing; filters and registries stay as they are."""
    shown = warnings.showwarning
    warnings.showwarning = lambda *_, **__: None
    try:
        yield
    finally:
        warnings.showwarning = shown


def _may_run(call: Any) -> bool:
    """Whether an operator computes the same each time and changes nothing."""
    if torch.Tag.nondeterministic_seeded in call.tags or call._schema.is_mutable:
        return False
    name = call._schema.name
    return "batch_norm" not in name and "dropout" not in name


def _result_names(node: Any, output: int) -> list[str]:
    """Names under which a node saves one of its own outputs."""
    if nodes.is_custom(node):
        return []
    names = [f"result{output}", *(["result", "output", "out"] if output == 0 else [])]
    call = nodes.op_of(node).call
    if call is not None:
        returns = call._schema.returns
        if output < len(returns) and returns[output].name:
            names.insert(0, returns[output].name)
    return [name for name in names if hasattr(type(node), f"_raw_saved_{name}")]
