"""The shape of a loss graph: names for the place of an operation that hold from step to step.

Reads node names and edges only.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from types import FrameType
from typing import Any, NamedTuple

import torch

from tuimon.train.autopsy.nodes import is_leaf
from tuimon.train.autopsy.sites import is_foreign

MAX_NODES = 20_000
CALLER_FRAMES = 3  # libraries call backward at one line for everybody: the lines above tell apart

Caller = tuple[tuple[str, int], ...]


class Spot(NamedTuple):
    """One operation of a graph.

    Attributes:
        node: its node.
        path: stands for the edges and names from the loss down to it.
        around: stands for its name and those of its neighbours.
        above: index of the spot that it was reached from; -1 for the loss.
        edge: which edge of that one.
    """

    node: Any
    path: int
    around: int
    above: int
    edge: int


def caller() -> Caller:
    """The innermost lines of the user's on the stack."""
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[str, int]] = []
    while frame is not None and len(found) < CALLER_FRAMES:
        code = frame.f_code
        if not is_foreign(code.co_filename):
            found.append((code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def spots(losses: Iterable[torch.Tensor], limit: int = MAX_NODES) -> list[Spot]:
    """The operations below these losses, nearest first, without the leaves."""
    waiting: deque[tuple[Any, int, int, int]] = deque()
    for index, loss in enumerate(losses):
        if loss.grad_fn is not None:
            waiting.append((loss.grad_fn, index, -1, index))
    known: set[int] = set()
    found: list[Spot] = []
    while waiting and len(found) < limit:
        node, path, above, edge = waiting.popleft()
        if id(node) in known:
            continue
        known.add(id(node))
        name = node.name()
        path = hash((path, edge, name))
        over = found[above].node.name() if above >= 0 else ""
        children = node.next_functions
        below = tuple(
            (child.name(), *(grand.name() for grand, _ in child.next_functions if grand))
            for child, _ in children
            if child is not None
        )
        at = len(found)
        found.append(Spot(node, path, hash((over, name, below)), above, edge))
        waiting.extend(
            (child, path, at, position)
            for position, (child, _) in enumerate(children)
            if child is not None and not is_leaf(child)
        )
    return found


def way_to(found: list[Spot], at: int) -> tuple[tuple[int, str], ...]:
    """(edge, name) of every operation from the loss down to a spot, the loss first."""
    way: list[tuple[int, str]] = []
    while at >= 0:
        spot = found[at]
        way.append((spot.edge, spot.node.name()))
        at = spot.above
    return tuple(reversed(way))
