"""Walks the graph of a loss once, for what its shape tells: reductions, repeated weights, kinds.

Reads names, edges and single saved numbers; runs no code of the script, changes nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tuimon.model.graphs import MAX_KINDS, MAX_TERMS, MAX_USES, GraphSeen, LossTerm
from tuimon.model.text import plain

MAX_NODES = 4096  # a recurrent net over hundreds of steps; some ten milliseconds, once
MAX_CHAIN = 12  # nodes from a loss to where it became one number
_NAME = re.compile(r"(.*?)Backward\d*$")
_LEAF = "torch::autograd::AccumulateGrad"
_OF_TORCH = ("CheckpointFunction", "CompiledFunction", "GeneratedBackward")
_SUMS = ("Sum", "Nansum")
_PASSING = ("View", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Neg", "Clone", "Alias", "Abs")
_UNPACKED = object()


def look_at_graph(
    roots: Iterable[torch.Tensor], name_of: Callable[[torch.Tensor], str]
) -> GraphSeen | None:
    """What the graphs of these losses show; None where there is none. Call it inside `modes.apart`.

    Args:
        roots: losses whose backward has not run yet.
        name_of: the name of a parameter.
    """
    starts = [node for root in roots if (node := root.grad_fn) is not None]
    if not starts:
        return None
    waiting: deque[Any] = deque(starts)
    known: dict[int, Any] = {}  # keeps the nodes alive, so that their ids stay theirs
    kinds: Counter[str] = Counter()
    uses: Counter[str] = Counter()
    functions: dict[str, None] = {}
    while waiting and len(known) < MAX_NODES:
        node = waiting.popleft()
        if id(node) in known:
            continue
        known[id(node)] = node
        kind = _kind(node)
        kinds[kind] += 1
        if _is_own(node, kind):
            functions[kind] = None
        for each, _ in node.next_functions:
            if each is None:
                continue
            if each.name() == _LEAF:
                uses[plain(name_of(each.variable), 120)] += 1
            else:
                waiting.append(each)
    return GraphSeen(
        nodes=len(known),
        is_whole=not waiting,
        kinds=dict(kinds.most_common(MAX_KINDS)),
        uses=uses.most_common(MAX_USES),
        terms=_terms(starts),
        functions=[plain(name, 80) for name in list(functions)[:MAX_TERMS]],
    )


def _kind(node: Any) -> str:
    name = node.name()
    found = _NAME.match(name)
    return plain(found[1] if found else name, 80)


def _is_own(node: Any, kind: str) -> bool:
    """Whether it is a function of the script's: those have no number behind their name."""
    return node.name().endswith("Backward") and not kind.startswith(_OF_TORCH)


def _terms(starts: list[Any]) -> list[LossTerm]:
    waiting = deque((node, 1.0, 0) for node in starts)
    found: list[LossTerm] = []
    while waiting and len(found) < MAX_TERMS:
        node, factor, depth = waiting.popleft()
        kind = _kind(node)
        following = [each for each, _ in node.next_functions if each is not None]
        if (reduced := _reduced(node, kind)) is not None:
            found.append(LossTerm(node.name(), *reduced, factor))
        elif depth >= MAX_CHAIN or not following:
            found.append(LossTerm(plain(node.name(), 80), "", None, factor))
        elif kind in ("Add", "Sub"):
            # A summand from outside of the graph has no node of its own.
            waiting.extend((each, factor, depth + 1) for each in following)
        elif kind in ("Mul", "Div"):
            constant = _constant(node)
            if constant is None:
                found.append(LossTerm(plain(node.name(), 80), "", None, factor))
                continue
            factor = factor * constant if kind == "Mul" else factor / constant
            waiting.append((following[0], factor, depth + 1))
        elif kind.startswith(_PASSING):
            waiting.append((following[0], factor, depth + 1))
        else:
            found.append(LossTerm(plain(node.name(), 80), "", None, factor))
    return found


def _reduced(node: Any, kind: str) -> tuple[str, int | None] | None:
    """("sum" or "mean", of how many numbers) where this node made them one."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    elements = None if sizes is None else math.prod(int(size) for size in sizes)
    if kind == "Mean":
        return "mean", elements
    if kind in _SUMS:
        return "sum", _summed(node, elements)
    reduction = getattr(node, "_saved_reduction", None)
    if isinstance(reduction, int):
        return {1: "mean", 2: "sum"}.get(reduction, ""), _saved_count(node)
    return None


def _summed(node: Any, elements: int | None) -> int | None:
    """How many numbers were summed, over one axis after the other."""
    for _ in range(MAX_CHAIN):
        node = next((each for each, _ in node.next_functions if each is not None), None)
        if node is None or not _kind(node).startswith((*_PASSING, *_SUMS)):
            break
        if _kind(node) in _SUMS and (sizes := getattr(node, "_saved_self_sym_sizes", None)):
            elements = max(elements or 0, math.prod(int(size) for size in sizes))
    return elements


def _saved_count(node: Any) -> int | None:
    saved = _saved(node, "self")
    return None if saved is None else saved.numel()


def _constant(node: Any) -> float | None:
    """The number that a product or quotient was made with; None where it was a variable."""
    other = _saved(node, "other")
    if other is None or other.numel() != 1 or other.requires_grad or other.device.type != "cpu":
        return None
    value = float(other)
    return value if math.isfinite(value) and value != 0 else None


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """A saved tensor that no hook has packed away."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", _UNPACKED) is not None:
        return None
    try:
        saved = getattr(node, f"_saved_{name}")
    except RuntimeError:
        return None
    return saved if type(saved) is torch.Tensor else None
