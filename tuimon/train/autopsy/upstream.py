"""Walks over the graph of autograd by the names of its nodes. Reads no saved tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tuimon.model.autopsy import MAX_PATH
from tuimon.train.autopsy.origins import Site

MAX_NODES = 200_000


def has_node(roots: Iterable[Any], name: str) -> bool:
    """Whether a node of that name lies below any of the given ones."""
    return any(node.name() == name for node in _below(roots))


def above(roots: Iterable[Any], site: Site) -> list[str]:
    """Names of the nodes between that of `site` and the outputs, the nearest first.

    The shortest way; empty when the node is not in this graph.
    """
    users: dict[Any, Any] = {}
    found = None
    for node in _below(roots):
        if node.name() == site.node and node._sequence_nr() == site.sequence:
            found = node
            break
        for below, _ in node.next_functions:
            if below is not None:
                users.setdefault(below, node)
    names: list[str] = []
    while found is not None and (found := users.get(found)) is not None:
        if len(names) == MAX_PATH:
            break
        names.append(found.name())
    return names


def outermost(
    outputs: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradients of those outputs that no other one was computed from.

    What came back to the others has passed through these: a model that gives its loss beside its
    logits would be given the gradient of the logits twice.
    """
    seeded = [
        index
        for index, (tensor, grad) in enumerate(zip(outputs, grads, strict=True))
        if grad is not None and tensor.grad_fn is not None
    ]
    found = list(grads)
    if len(seeded) < 2:
        return found
    nodes = {index: outputs[index].grad_fn for index in seeded}
    for index in seeded:
        below = set(_below([nodes[index]])) - {nodes[index]}
        for other in seeded:
            if nodes[other] in below:
                found[other] = None
    return found


def _below(roots: Iterable[Any]) -> Iterable[Any]:
    """All nodes from the given ones on, in order of their distance."""
    todo = [node for node in roots if node is not None]
    seen = set(todo)
    for node in todo:
        yield node
        if len(seen) > MAX_NODES:
            return
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                todo.append(below)
