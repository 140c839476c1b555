"""Backward faults in loss code: which operation turned a finite gradient into one that is not.

Only operations whose derivative can do that are listened to, only outside of the models, and what
their hooks were given is kept until the gate at the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tuimon.model.autopsy import BACKWARD, INCOMING, OPERATION, TensorNote
from tuimon.train.autopsy import looks, nodes
from tuimon.train.autopsy.graph import Found, site_of
from tuimon.train.autopsy.linemap import Found as Place
from tuimon.train.autopsy.linemap import Learned, LineMap
from tuimon.train.autopsy.structure import Caller, caller, way_to

MAX_WATCHED = 16  # operations of one loss
MAX_LOSSES = 8  # backward calls of a loop
MAX_DEPTH = 64  # edges below the loss
MAX_KEPT = 64  # operations that are kept until the gate
MAX_KEPT_BYTES = 64 << 20
MAX_UPSTREAM = 32

# From finite values and a finite gradient their derivatives make finite gradients.
_TAME = frozenset(
    ("Abs", "Add", "Alias", "AsStrided", "BinaryCrossEntropyWithLogits", "Cat", "Clamp", "Clone",
     "ClampMin", "ClampMax", "Cos", "Cumsum", "Elu", "Embedding", "Expand", "Flip", "Gather",
     "Gelu", "HuberLoss", "Index", "IndexSelect", "L1Loss", "LeakyRelu", "Lerp", "LogSigmoid",
     "LogSoftmax", "MaskedFill", "MaskedSelect", "Max", "Maximum", "Mean", "Min", "Minimum",
     "MseLoss", "Neg", "NllLoss", "NllLoss2D", "Permute", "Relu", "Repeat", "Reshape",
     "ReshapeAlias", "Roll", "Rsub", "Select", "Sigmoid", "Sign", "Silu", "Sin", "Slice",
     "SmoothL1Loss", "SoftMarginLoss", "Softmax", "Softplus", "Split", "Squeeze", "Stack", "Sub",
     "Sum", "T", "Tanh", "ToCopy", "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View",
     "Where")
)  # fmt: skip
# So do those of these, but for a value that a mask hides from the loss: 0 * inf.
_TAME_UNMASKED = frozenset(("Addmm", "Baddbmm", "Bmm", "Dot", "Mm", "Mul", "Mv"))
_MASKS = frozenset(("Where", "MaskedFill", "MaskedSelect", "Index", "Gather", "Minimum", "Clamp"))


class _Twig(NamedTuple):
    """An operation on the way from the loss to one that is listened to.

    Attributes:
        edge: the edge that leads to it.
        name: of its node.
        watched: where it comes from, when it is listened to itself.
        twigs: those below it.
    """

    edge: int
    name: str
    watched: _Watched | None
    twigs: list[_Twig]


class _Watched(NamedTuple):
    """An operation that is listened to.

    Attributes:
        op, node: names of the operator and of the node; no reference to the graph.
        place: where it comes from.
        upstream: names of the nodes between it and the loss.
    """

    op: str
    node: str
    place: Place
    upstream: tuple[str, ...]


class _Passed(NamedTuple):
    """What backward gave to an operation and got from it."""

    watched: _Watched
    given: tuple[torch.Tensor | None, ...]
    got: tuple[torch.Tensor | None, ...]


class LossNodes:
    """Listens to the risky operations of loss code. Used by the training thread only.

    Attributes:
        roots: what to listen to, by where backward is called; empty when there is nothing.
        hooks: what listens until the gate.
    """

    def __init__(self, lines: LineMap) -> None:
        self._lines = lines
        self.roots: dict[Caller, list[_Twig]] = {}
        self._kept: list[_Passed] = []
        self._bytes = 0
        self.hooks: list[Any] = []

    def before_backward(
        self, losses: Sequence[torch.Tensor], learned: Learned | None = None
    ) -> None:
        """A backward of the user's is about to begin.

        Args:
            losses: what it is called with.
            learned: what `LineMap.before_backward` has returned just now.
        """
        if learned is not None:
            self._learn(learned)
        if not self.roots:
            return
        twigs = self.roots.get(caller())
        if twigs is None:
            return
        for twig in twigs:
            if twig.edge < len(losses):
                self._follow(losses[twig.edge].grad_fn, twig)

    def verdict(self) -> Found | None:
        """The first operation in backward order that made a gradient non-finite.

        Call it at the gate, before `drop`; None when none of those that were listened to did.
        """
        with looks.apart():
            for passed in self._kept:
                if any(map(_is_bad, passed.got)) and not any(map(_is_bad, passed.given)):
                    return self._found(passed)
        return None

    def drop(self) -> None:
        """Forget what backward has shown."""
        self._kept.clear()
        self._bytes = 0
        hooks, self.hooks = self.hooks, []
        for hook in hooks:
            hook.remove()

    # --- what there is to listen to ---------------------------------------------------------------

    def _learn(self, learned: Learned) -> None:
        masked = any(nodes.kind(spot.node) in _MASKS for spot in learned.spots)
        roots: list[_Twig] = []
        count = 0
        for at, (spot, site) in enumerate(zip(learned.spots, learned.sites, strict=True)):
            if count == MAX_WATCHED:
                break
            if site is None or site.in_model or site.module is None:
                continue
            if not is_risky(spot.node, masked):
                continue
            way = way_to(learned.spots, at)
            if len(way) <= MAX_DEPTH:
                upstream = tuple(name for _, name in reversed(way[:-1]))[:MAX_UPSTREAM]
                watched = _Watched(nodes.op_of(spot.node).name, way[-1][1], site, upstream)
                _grow(roots, way, watched)
                count += 1
        if roots and (learned.caller in self.roots or len(self.roots) < MAX_LOSSES):
            self.roots[learned.caller] = roots
        elif not roots:
            self.roots.pop(learned.caller, None)

    def _follow(self, node: Any, twig: _Twig) -> None:
        waiting = [(node, twig)]
        while waiting:
            node, twig = waiting.pop()
            if node is None or node.name() != twig.name:
                self._lines.look_again()
                continue
            if twig.watched is not None:
                self._listen(node, twig.watched)
            if twig.twigs:
                edges = node.next_functions
                waiting += [(edges[t.edge][0], t) for t in twig.twigs if t.edge < len(edges)]

    def _listen(self, node: Any, watched: _Watched) -> None:
        # The hook must not hold the node: the node holds the hook.
        def after(got: Any, given: Any) -> None:
            if len(self._kept) < MAX_KEPT:
                self._keep(watched, given, got)

        if len(self.hooks) < MAX_KEPT:
            self.hooks.append(node.register_hook(after))

    def _keep(self, watched: _Watched, given: Any, got: Any) -> None:
        both = [each for each in (*given, *got) if each is not None]
        self._bytes += sum(each.numel() * each.element_size() for each in both)
        if self._bytes <= MAX_KEPT_BYTES:
            self._kept.append(_Passed(watched, _apart(given), _apart(got)))

    def _found(self, passed: _Passed) -> Found:
        watched = passed.watched
        site = site_of(
            watched.op,
            watched.place,
            node=watched.node,
            phase=BACKWARD,
            inputs=_notes(passed.given, INCOMING),
            outputs=_notes(passed.got, "gradient"),
        )
        return Found(
            OPERATION,
            site,
            path=(site,),
            upstream=watched.upstream,
            notes=(watched.place.note,) if watched.place.note else (),
            in_loss_code=True,
        )


def is_risky(node: Any, masked: bool = True) -> bool:
    """Whether an operation can turn finite gradients into others, given finite values."""
    if nodes.is_leaf(node):
        return False
    if nodes.is_custom(node):
        return True
    kind = nodes.kind(node)
    if kind == "Pow":  # of a number, as in a mean square: a product
        exponent = getattr(node, "_saved_exponent", None)
        kind = "Mul" if isinstance(exponent, int | float) and exponent >= 1 else kind
    return kind not in _TAME and (masked or kind not in _TAME_UNMASKED)


def _grow(roots: list[_Twig], way: tuple[tuple[int, str], ...], watched: _Watched) -> None:
    twigs = roots
    for depth, (edge, name) in enumerate(way):
        last = depth == len(way) - 1
        at = next((i for i, t in enumerate(twigs) if t.edge == edge and t.name == name), None)
        if at is None:
            twigs.append(_Twig(edge, name, watched if last else None, []))
            at = len(twigs) - 1
        elif last:
            twigs[at] = twigs[at]._replace(watched=watched)
        twigs = twigs[at].twigs


def _apart(tensors: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    """Without the graph of a backward that makes one."""
    return tuple(
        each.detach() if each is not None and each.requires_grad else each for each in tensors
    )


def _is_bad(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and looks.is_bad(tensor.detach())


def _notes(tensors: Sequence[torch.Tensor | None], name: str) -> list[TensorNote]:
    return [looks.note_of(each.detach(), name) for each in tensors if each is not None]
