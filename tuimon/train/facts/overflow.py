"""Which gradient overflowed first in an update that the GradScaler leaves out.

Reads the structure of a graph that has been run and gradients in host memory; keeps neither.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tuimon.model.amp import BY_GRAPH, BY_TABLE, AmpSkip
from tuimon.model.records import NO_GRAD, NON_FINITE, UNMEASURED, BadTensor
from tuimon.train.stats import Measured, Plan, count_bad, measurable

if TYPE_CHECKING:
    from tuimon.train.track import Track

MAX_NODES = 20_000  # of a graph; 20 ms at a step that is left out anyway
MAX_WALKS = 8  # of one run: the order of a model hardly ever changes
MAX_COUNTED = 1 << 22  # elements of the gradient that are counted exactly


class Overflows:
    """Used by the training thread only, inside `GradScaler.step`."""

    def __init__(self) -> None:
        self._loss: weakref.ref[torch.Tensor] | None = None
        self._order: dict[int, int] = {}  # id of a parameter -> place in the backward pass
        self._walks = 0
        self._found: AmpSkip | None = None

    def note_loss(self, outputs: Any) -> None:
        """This loss was scaled, or the last one of these."""
        if isinstance(outputs, list | tuple) and outputs:
            outputs = outputs[-1]
        if isinstance(outputs, torch.Tensor):
            self._loss = weakref.ref(outputs)

    def look(self, track: Track) -> None:
        """The gradients have been measured and are as the scaler will find them."""
        self._found = None
        measured = track.update.measured
        if measured is None or measured.flags is None or not measured.bad_total:
            return
        plan, flags = track.plan, measured.flags
        bad = np.flatnonzero(flags & NON_FINITE).tolist()
        order = self._order_of([plan.params[place] for place in bad])
        if order is None:
            first, how = bad[-1], BY_TABLE
        else:
            first, how = min(bad, key=lambda place: order[id(plan.params[place])]), BY_GRAPH
        # After a clipping that hides what was, the gradients tell something else.
        counted = _counted(plan, measured, first, recount=track.update.left is None)
        self._found = AmpSkip(
            step=track.step,
            optimizer=track.index,
            name=plan.names[first],
            nan=counted.nan if counted else None,
            posinf=counted.posinf if counted else None,
            neginf=counted.neginf if counted else None,
            numel=plan.params[first].numel(),
            tensors=len(bad),
            measured=int(np.count_nonzero((flags & (NO_GRAD | UNMEASURED)) == 0)),
            order=how,
        )

    def take(self, step: int, optimizer: int) -> AmpSkip:
        """What is known of the update that was left out."""
        found, self._found = self._found, None
        return found if found is not None else AmpSkip(step=step, optimizer=optimizer)

    def _order_of(self, params: list[torch.Tensor]) -> dict[int, int] | None:
        """Places of parameters in the order in which the backward pass ended their gradients."""
        wanted = {id(param) for param in params}
        if not wanted <= self._order.keys() and self._walks < MAX_WALKS:
            self._walks += 1
            loss = self._loss() if self._loss is not None else None
            node = loss.grad_fn if loss is not None else None
            self._order = _backward_order(node) if node is not None else {}
        return self._order if wanted <= self._order.keys() else None


def _backward_order(root: Any) -> dict[int, int]:
    """Id of each leaf below a node -> its place in the order of the backward pass.

    The engine runs the node with the highest sequence number first, and a gradient is complete
    once the last node that adds to it has run.
    """
    last_use: dict[int, int] = {}
    waiting, seen = [root], {root}
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop()
        number = node._sequence_nr()
        for inner, _ in node.next_functions:
            if inner is None:
                continue
            leaf = getattr(inner, "variable", None) if not inner.next_functions else None
            if leaf is not None:
                last_use[id(leaf)] = min(number, last_use.get(id(leaf), number))
            elif inner not in seen:
                seen.add(inner)
                waiting.append(inner)
    if len(seen) >= MAX_NODES:
        return {}
    ordered = sorted(last_use, key=last_use.__getitem__, reverse=True)
    return {leaf: place for place, leaf in enumerate(ordered)}


def _counted(plan: Plan, measured: Measured, place: int, *, recount: bool) -> BadTensor | None:
    name = plan.names[place]
    for tensor in measured.bad:
        if tensor.name == name:
            return tensor
    grad = plan.params[place].grad
    if not recount or grad is None or grad.numel() > MAX_COUNTED:
        return None
    values = measurable(grad)
    return None if values is None else count_bad("gradient", name, values)
