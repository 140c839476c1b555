"""Reads from the graph of a loss what its loss functions were given, before backward frees it.

A node that has saved a target is a loss function, whatever its name. Saved tensors are taken only
where that runs no code: a hook of checkpointing or of the user's would be run by taking them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from tuimon.model.batches import MAX_LABELS, LossFacts, LossSeen, TensorSummary
from tuimon.model.text import plain
from tuimon.train.samples.summary import bounded, is_plain, summarise, why_not

MAX_NODES = 64
MAX_LOSSES = 4
MAX_ABOVE = 6
NEAR_ROOT = 4  # nodes between a loss and a difference that it is made of
LABELS_LOOKED_AT = 65_536
_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
_NO_TARGET = object()
_DIFFERENCES = ("SubBackward", "RsubBackward")
# What adds an axis on purpose: pairs are compared so.
_SHAPING = ("Unsqueeze", "View", "Reshape", "UnsafeView", "Expand")


def losses_below(roots: Iterable[torch.Tensor], limit: int) -> list[LossSeen]:
    """The loss functions of these losses, nearest first; call it inside `modes.apart`.

    Args:
        roots: losses whose backward has not run yet.
        limit: elements of each tensor to look at.
    """
    nodes, differences = _loss_nodes(roots)
    found = [_seen(node, limit) for node in nodes]
    return found + differences[: MAX_LOSSES - len(found)]


def _loss_nodes(roots: Iterable[torch.Tensor]) -> tuple[list[Any], list[LossSeen]]:
    """Nodes that have saved a target, and differences of a column and a row near the roots.

    By a walk of bounded length from the roots.
    """
    waiting: deque[tuple[Any, int]] = deque(
        (node, 0) for root in roots if (node := root.grad_fn) is not None
    )
    known: dict[int, Any] = {}  # keeps the nodes alive, so that their ids stay theirs
    found: list[Any] = []
    crossed: list[LossSeen] = []
    while waiting and len(known) < MAX_NODES and len(found) < MAX_LOSSES:
        node, depth = waiting.popleft()
        if id(node) in known:
            continue
        known[id(node)] = node
        if hasattr(type(node), "_saved_target") and hasattr(type(node), "_saved_self"):
            found.append(node)
            continue
        if depth <= NEAR_ROOT and (shape := _crossed(node)):
            crossed.append(_crossed_seen(node, *shape))
        elif depth <= NEAR_ROOT and (product := _divergence(node)) is not None:
            facts = LossFacts("KlDiv", above=_above(product))
            unknown = TensorSummary("prediction", [], "", why_not="not kept by the graph")
            crossed.append(LossSeen(facts, unknown))
        waiting.extend((each, depth + 1) for each, _ in node.next_functions if each is not None)
    return found, crossed


def _crossed(node: Any) -> tuple[list[int], list[int]] | None:
    """(prediction, result) where a difference has spread a column and a row to a square.

    Only one side comes from the model, and it was not given an axis more for the purpose.
    """
    if not node.name().startswith(_DIFFERENCES):
        return None
    sides = [(each, index) for each, index in node.next_functions if each is not None]
    if len(sides) != 1 or sides[0][0].name().startswith(_SHAPING):
        return None
    whole, part = _shape_of(node, 0), _shape_of(*sides[0])
    if whole is None or part is None or len(whole) != 2 or whole[0] != whole[1] or whole[0] < 2:
        return None
    return (part, whole) if part in ([whole[0], 1], [whole[0]]) else None


def _divergence(node: Any) -> Any:
    """The product of target and prediction in `target log target - target prediction`."""
    edges = node.next_functions
    if not node.name().startswith("SubBackward") or len(edges) != 2 or edges[0][0] is not None:
        return None
    product = edges[1][0]
    if product is None or not product.name().startswith("MulBackward"):
        return None
    factors = [each for each, _ in product.next_functions]
    if len(factors) != 2 or None not in factors or factors == [None, None]:
        return None
    return product if factors[0] is not None else _Turned(product)


class _Turned:
    """A node whose second operand comes first."""

    def __init__(self, node: Any) -> None:
        self.next_functions = tuple(reversed(node.next_functions))


def _crossed_seen(node: Any, part: list[int], whole: list[int]) -> LossSeen:
    other = [whole[0]] if len(part) == 2 else [whole[0], 1]
    return LossSeen(
        LossFacts(op=plain(node.name(), 80)),
        TensorSummary("prediction", whole, "", why_not="not kept by the graph"),
        spread=[part, other],
    )


def _shape_of(node: Any, index: int) -> list[int] | None:
    """Shape of one output of the operation that a node differentiates."""
    metadata = getattr(node, "_input_metadata", None)
    if metadata is None or index >= len(metadata):
        return None
    return [int(size) for size in metadata[index].shape]


def _seen(node: Any, limit: int) -> LossSeen:
    prediction, no_prediction = _saved(node, "self")
    target, no_target = _saved(node, "target")
    described = _described("prediction", prediction, no_prediction, limit)
    facts = _facts(node, prediction, target)
    if target is None:
        return LossSeen(facts, described, _described("target", None, no_target, limit))
    seen = LossSeen(
        facts,
        described,
        _described("target", target, "", limit),
        spread=[] if prediction is None else _spread(prediction, target),
    )
    if why_not(target):
        return seen
    return _with_labels(seen, target) if facts.classes is not None else _with_range(seen, target)


def _saved(node: Any, name: str) -> tuple[torch.Tensor | None, str]:
    """(saved tensor, "") or (None, why there is none to look at)."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    # None when no hook unpacks it; torch versions that cannot tell are taken not to know.
    if getattr(raw, "unpack_hook", _NO_TARGET) is not None:
        return None, "packed away by a hook of the script, such as checkpointing"
    try:
        tensor = getattr(node, f"_saved_{name}")
    except RuntimeError as error:
        return None, plain(f"not readable: {error}", 100)
    return tensor, "" if tensor is not None else "not saved"


def _described(name: str, tensor: torch.Tensor | None, reason: str, limit: int) -> TensorSummary:
    if tensor is None:
        return TensorSummary(name, [], "", "", why_not=reason)
    return summarise(name, tensor, limit, samples=False)


def _facts(node: Any, prediction: torch.Tensor | None, target: torch.Tensor | None) -> LossFacts:
    return LossFacts(
        op=plain(node.name(), 80),
        reduction=_REDUCTIONS.get(getattr(node, "_saved_reduction", -1), ""),
        classes=_classes(prediction, target),
        ignore_index=_signed(getattr(node, "_saved_ignore_index", None)),
        above=_above(node),
        axis=_axis(node, prediction),
        class_axis=None if prediction is None else int(prediction.dim() > 1),
        is_swapped=_is_swapped(node),
    )


def _axis(node: Any, prediction: torch.Tensor | None) -> int | None:
    """The axis of the softmax right before a loss over class indices."""
    above = node.next_functions[0][0] if node.next_functions else None
    if above is None or prediction is None or not above.name().startswith("LogSoftmax"):
        return None
    axis = _signed(getattr(above, "_saved_dim", None))
    if axis is None or not prediction.dim():
        return None
    return axis % prediction.dim()


def _is_swapped(node: Any) -> bool:
    edges = node.next_functions
    return len(edges) > 1 and edges[0][0] is None and edges[1][0] is not None


def _classes(prediction: torch.Tensor | None, target: torch.Tensor | None) -> int | None:
    """How many classes there are, where targets are indices of them."""
    if prediction is None or target is None or not (is_plain(prediction) and is_plain(target)):
        return None
    if target.dtype.is_floating_point or target.dtype.is_complex:
        return None
    if prediction.dim() != target.dim() + 1:
        return None
    return int(prediction.shape[1 if prediction.dim() > 1 else 0])


def _signed(value: int | None) -> int | None:
    """Nodes tell a negative index as an unsigned number of 64 bits."""
    return value - (1 << 64) if value is not None and value >= 1 << 63 else value


def _above(node: Any) -> list[str]:
    """Names along the first edge: what made the prediction."""
    names: list[str] = []
    while len(names) < MAX_ABOVE:
        edges = node.next_functions
        if not edges or edges[0][0] is None:
            break
        node = edges[0][0]
        names.append(plain(node.name(), 80))
    return names


def _with_labels(seen: LossSeen, target: torch.Tensor) -> LossSeen:
    part, _ = bounded(target, LABELS_LOOKED_AT)
    labels, counts = torch.unique(part.to(torch.int64), return_counts=True)
    pairs = list(zip(labels.tolist(), counts.tolist(), strict=True))
    ignore = seen.facts.ignore_index
    counted = [(label, count) for label, count in pairs if label != ignore]
    classes = seen.facts.classes or 0
    return LossSeen(
        seen.facts,
        seen.prediction,
        seen.target,
        labels=counted if len(counted) <= MAX_LABELS else [],
        label_range=[counted[0][0], counted[-1][0]] if counted else [],
        ignored=sum(count for label, count in pairs if label == ignore),
        outside=sum(count for label, count in counted if not 0 <= label < classes),
        spread=seen.spread,
    )


def _with_range(seen: LossSeen, target: torch.Tensor) -> LossSeen:
    if not seen.facts.op.startswith("BinaryCrossEntropy"):
        return seen
    part, _ = bounded(target, LABELS_LOOKED_AT)
    outside = int(((part < 0) | (part > 1)).sum())
    return LossSeen(seen.facts, seen.prediction, seen.target, outside=outside, spread=seen.spread)


def _spread(prediction: torch.Tensor, target: torch.Tensor) -> list[list[int]]:
    """Shapes before each was repeated along an axis of the other; [] when not both were."""
    if not (is_plain(prediction) and is_plain(target)):
        return []
    before = [_unrepeated(prediction), _unrepeated(target)]
    both = before[0] != [*prediction.shape] and before[1] != [*target.shape]
    return before if both else []


def _unrepeated(tensor: torch.Tensor) -> list[int]:
    """The shape without repetition: an axis that repeats has a stride of 0."""
    shape = [
        1 if stride == 0 and size > 1 else int(size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    base = tensor._base
    if base is None or base.dim() >= len(shape):
        return shape
    original = [*base.shape]
    return original if shape[len(shape) - len(original) :] == original else shape
