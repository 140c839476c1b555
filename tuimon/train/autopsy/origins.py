"""Where the operation that runs now belongs: phase, module, line, autograd node.

In the backward an operation belongs to the forward operation whose node runs, found by the node's
sequence number; Python that the engine calls (a custom backward, a recomputation) comes first.
"""

from __future__ import annotations

import threading
from types import CodeType
from typing import Any, NamedTuple

import torch

from tuimon.model.autopsy import BACKWARD, FORWARD
from tuimon.train.autopsy import sites
from tuimon.train.autopsy.names import Names
from tuimon.train.autopsy.sites import Place

_NEAR = 4  # nodes without an operation of their own that may follow one


class Site(NamedTuple):
    """Attributes are those of `model.autopsy.OpSite`; `sequence` is the number of the node."""

    phase: str
    module: str | None
    place: Place | None
    node: str = ""
    sequence: int | None = None


class Origins:
    """Used by whatever thread runs the operations of one re-run.

    Attributes:
        entry: the function of ours that calls the user's code: no frame above it is looked at.
        called_from: stands in where no line of the user's lies below `entry`.
        phase: of operations outside of any backward.
        owner: the module in the optimizer's phase.
    """

    def __init__(
        self,
        names: Names,
        entry: CodeType,
        called_from: Place | None = None,
        *,
        phase: str = FORWARD,
        anywhere: str | None = None,
    ) -> None:
        self._names = names
        self._entry = entry
        self._called_from = called_from
        self._phase = phase
        self._anywhere = anywhere
        self._thread = threading.get_ident()
        self._made: dict[int, Site] = {}  # sequence number of a node -> who made it
        self._module_of: dict[tuple[str, int], str | None] = {}

    def meet(self, in_graph: bool, op: str) -> None:
        """An operation is about to run: remember whose the node is that was just made for it."""
        if not in_graph or self._phase is not FORWARD:
            return
        backward = torch._C._current_autograd_node() is not None
        if backward and not torch.is_grad_enabled():
            return
        if threading.get_ident() != self._thread:  # the counter of another thread
            return
        sequence = torch._C._autograd._get_sequence_nr() - 1
        if sequence not in self._made:
            self._made[sequence] = self.site()

    def has_grad(self, tensor: torch.Tensor) -> bool:
        """Whether an operand belongs to the graph of the step."""
        return tensor.requires_grad

    def site(self) -> Site:
        """Where the running operation belongs."""
        node = torch._C._current_autograd_node() if self._phase is FORWARD else None
        if node is None:
            place = sites.innermost(self._entry) or self._called_from
            path = self._names.path
            if path is None:
                path = self._anywhere
            elif place is not None:
                key = place[:2]
                known = self._module_of.setdefault(key, path)
                if known != path:
                    self._module_of[key] = None
            return Site(self._phase, path, place)
        return self._in_backward(node)

    def _in_backward(self, node: Any) -> Site:
        made_by = self._maker(node)
        below = sites.below_engine(self._entry)
        place, module = (None, None) if made_by is None else (made_by.place, made_by.module)
        if below.place is not None:
            module = self._names.path or self._module_of.get(below.place[:2]) or module
            place = below.place
            if below.recomputed:
                return Site(FORWARD, module, place)
        return Site(BACKWARD, module, place, node.name(), node._sequence_nr())

    def _maker(self, node: Any) -> Site | None:
        """The forward operation of a node."""
        remembered = sites.remembered(node)
        if remembered is not None and threading.get_ident() != self._thread:
            return Site(FORWARD, self._module_of.get(remembered[:2]), remembered)
        sequence = node._sequence_nr()
        for near in range(sequence, sequence - _NEAR, -1):
            if (site := self._made.get(near)) is not None:
                return site
        if remembered is not None:
            return Site(FORWARD, self._module_of.get(remembered[:2]), remembered)
        return None
