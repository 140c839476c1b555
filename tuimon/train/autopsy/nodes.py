"""What a node of the autograd graph is: its aten operator, its operands, and what it has saved.

Takes saved tensors only where that runs no code of the script's.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

_SUFFIX = re.compile(r"Backward\d*$")
_NO_HOOK = object()

# Autograd names the function that was called; a dispatch shows the operator it ends in.
_DISPATCHED = {
    "Cdist": "_cdist_forward",
    "Convolution": "convolution",
    "LogSigmoid": "log_sigmoid_forward",
    "MultilabelMarginLoss": "multilabel_margin_loss_forward",
    "NllLoss": "nll_loss_forward",
    "NllLoss2D": "nll_loss2d_forward",
}
# Operands without a gradient of their own have no edge.
_EDGELESS = ("condition", "mask", "index", "indices", "target", "weight", "pos_weight")
_LISTS = ("Tensor[]", "List[Tensor]", "Optional[List[Tensor]]")


class Op(NamedTuple):
    """The operator of a node.

    Attributes:
        name: as a dispatch shows it, "aten::log"; for an `autograd.Function` its class.
        call: the overload, where it is known which.
        edges: name of the argument that each edge belongs to; "" where that is not known.
        arguments: (name, whether it is a tensor) of all arguments.
    """

    name: str
    call: Any
    edges: tuple[str, ...]
    arguments: tuple[tuple[str, bool], ...]


def is_leaf(node: Any) -> bool:
    """Whether a node stands for a tensor that gathers its gradient."""
    return hasattr(node, "variable")


def is_custom(node: Any) -> bool:
    """Whether a node belongs to an `autograd.Function` in Python."""
    return isinstance(node, BackwardCFunction)


def kind(node: Any) -> str:
    """The name of a node without its ending: "Log" of "LogBackward0"."""
    return _SUFFIX.sub("", str(node.name()).rpartition("::")[2])


def op_of(node: Any) -> Op:
    """The operator of a node."""
    count = len(node.next_functions)
    if is_custom(node):
        return Op(kind(node), None, ("",) * count, ())
    cls: Any = type(node)
    given = tuple((name, hasattr(cls, f"_raw_saved_{name}")) for name in _saved_names(cls))
    return _op(str(node.name()), given, count)


@functools.cache
def _saved_names(cls: Any) -> tuple[str, ...]:
    return tuple(
        name.removeprefix("_saved_")
        for name in dir(cls)
        if name.startswith("_saved_") and "_sym_" not in name
    )


@functools.cache
def _op(node_name: str, given: tuple[tuple[str, bool], ...], edges: int) -> Op:
    base = _SUFFIX.sub("", node_name)
    unknown = Op(f"aten::{_snake(base)}", None, ("",) * edges, ())
    name = _DISPATCHED.get(base) or _by_camel().get(base)
    packet = getattr(torch.ops.aten, name, None) if name else None
    if packet is None:
        return unknown
    calls = [getattr(packet, each) for each in packet.overloads() if not each.endswith("out")]
    calls = [call for call in calls if not call._schema.is_mutable and call._schema.arguments]
    if not calls:
        return unknown
    call = max(calls, key=lambda each: _fit(each._schema, given, edges))
    arguments = tuple((arg.name, "Tensor" in str(arg.type)) for arg in call._schema.arguments)
    return Op(f"aten::{name}", call, _edge_names(call._schema, edges), arguments)


def _fit(schema: Any, given: tuple[tuple[str, bool], ...], edges: int) -> int:
    """How well an overload agrees with what a node has saved."""
    types = {arg.name: "Tensor" in str(arg.type) for arg in schema.arguments}
    names = {name for name, _ in given}
    score = sum(2 if types[name] is tensor else -2 for name, tensor in given if name in types)
    for arg in schema.arguments:
        if not types[arg.name] and arg.name not in names and not arg.has_default_value():
            score -= 1
    tensors = sum(types.values())
    return score - (edges > tensors and not _takes_list(schema))


def _takes_list(schema: Any) -> bool:
    return any(str(arg.type) in _LISTS for arg in schema.arguments)


def _edge_names(schema: Any, edges: int) -> tuple[str, ...]:
    tensors = [arg.name for arg in schema.arguments if "Tensor" in str(arg.type)]
    if _takes_list(schema) and len(tensors) == 1:
        return (tensors[0],) * edges
    for name in _EDGELESS:
        if len(tensors) > edges and name in tensors:
            tensors.remove(name)
    if len(tensors) < edges:
        return ("",) * edges
    return tuple(tensors[:edges])


@functools.cache
def _by_camel() -> dict[str, str]:
    """The operators by the name that autograd makes of theirs."""
    found: dict[str, str] = {}
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        name = name.partition(".")[0]
        if space != "aten" or name.endswith("_"):
            continue
        camel = "".join(part.title() for part in name.split("_"))
        # With an underscore in front it is the one that has the derivative.
        if camel not in found or name.startswith("_"):
            found[camel] = name
    return found


def _snake(base: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", base).lower()


def saved(node: Any, name: str) -> torch.Tensor | None:
    """A tensor that a node has saved; None where there is none, or taking it would run code."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    # None when no hook unpacks it; torch versions that cannot tell are taken not to know.
    if getattr(raw, "unpack_hook", _NO_HOOK) is not None:
        return None
    try:
        value = getattr(node, f"_saved_{name}")
    except RuntimeError:  # freed, or written to since
        return None
    return value if isinstance(value, torch.Tensor) else None


def is_packed(node: Any) -> bool:
    """Whether a hook of the script's stands before a tensor that a node has saved."""
    cls: Any = type(node)
    raws = [getattr(node, f"_raw_saved_{name}", None) for name in _saved_names(cls)]
    if is_custom(node):
        raws = list(node._raw_saved_tensors or ())
    return any(getattr(raw, "unpack_hook", None) is not None for raw in raws if raw is not None)


def number(node: Any, name: str) -> Any:
    """An argument that is no tensor, as the operator takes it; KeyError where it was not saved."""
    if not hasattr(type(node), f"_saved_{name}"):
        raise KeyError(name)
    return _signed(getattr(node, f"_saved_{name}"))


def saved_tensor_names(node: Any) -> tuple[str, ...]:
    """Names under which a node may have saved tensors."""
    if is_custom(node):
        return ()
    cls: Any = type(node)
    return tuple(name for name in _saved_names(cls) if hasattr(cls, f"_raw_saved_{name}"))


def output_like(node: Any, number_: int) -> tuple[tuple[int, ...], torch.dtype] | None:
    """Shape and kind of an output of the forward operation."""
    try:
        told = node._input_metadata[number_]
        return tuple(int(size) for size in told.shape), told.dtype
    except (AttributeError, IndexError, TypeError, RuntimeError):
        return None


def _signed(value: Any) -> Any:
    """Nodes tell a negative number as an unsigned one of 64 bits."""
    if isinstance(value, tuple):
        return [_signed(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 63:
        return value - (1 << 64)
    return value
