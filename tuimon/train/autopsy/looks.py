"""Looks at single tensors of a re-run: is anything in it not finite, and what exactly.

Changes nothing. Each look reads a result on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from tuimon.model.autopsy import TensorNote
from tuimon.model.text import plain
from tuimon.train.modes import apart as apart

MAX_AXES = 16  # of a shape that is told
MAX_SAMPLES = 16  # indices of poisoned samples that are told

_PLAIN = (torch.Tensor, nn.Parameter)
_SUMMABLE = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def stored(tensor: torch.Tensor) -> torch.Tensor | None:
    """The dense tensor that holds the elements; None for kinds whose storage says nothing."""
    kind = type(tensor)
    if kind not in _PLAIN and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None
    if tensor.device.type == "meta" or tensor.is_nested or tensor.is_quantized:
        return None
    if tensor.layout is torch.strided:
        return tensor
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return tensor.values()
    return None


def readable(tensor: torch.Tensor) -> torch.Tensor | None:
    """A dense real floating tensor with the same elements; None where nothing can be non-finite."""
    dense = stored(tensor)
    if dense is None or dense.numel() == 0 or dense.data_ptr() == 0:
        # Zeros that autograd only pretends to hold, and storages that were given back, have no
        # memory: reading them would end the process.
        return None
    if dense.dtype.is_complex:
        dense = torch.view_as_real(dense.resolve_conj().resolve_neg())
    if not dense.dtype.is_floating_point:
        return None
    return dense if dense.dtype in _SUMMABLE else dense.float()


def is_bad(tensor: torch.Tensor) -> bool:
    """Whether it holds a NaN or an infinity; False where it cannot be looked at.

    A finite sum proves every element finite; one that is not may have overflowed.
    """
    values = readable(tensor)
    if values is None:
        return False
    wide = torch.float64 if values.dtype is torch.float64 else torch.float32
    total = values.sum(dtype=wide).item()
    if math.isfinite(total):
        return False
    return not bool(torch.isfinite(values).all())


def is_hidden(tensor: torch.Tensor) -> bool:
    """Whether it may hold something non-finite that cannot be looked at."""
    return tensor.numel() > 0 and stored(tensor) is None and tensor.device.type != "meta"


def note_of(tensor: torch.Tensor, name: str = "", *, full: bool = True) -> TensorNote:
    """What can be told of a tensor.

    Args:
        tensor: any tensor.
        name: what it is.
        full: also its finite range and its zeros.
    """
    shape = [int(size) for size in tensor.shape[:MAX_AXES]]
    dtype = str(tensor.dtype).removeprefix("torch.")
    bare = TensorNote(plain(name, 120), shape, dtype, numel=tensor.numel())
    try:
        return _counted(bare, tensor, full)
    except (RuntimeError, TypeError):  # kinds of numbers that torch stores and cannot compare
        return bare


def finite_note_of(tensor: torch.Tensor, name: str = "") -> TensorNote:
    """The same of a tensor that is known to be finite, in two passes."""
    values = readable(tensor)
    if values is None:
        return note_of(tensor, name)
    low, high = (float(bound) for bound in torch.aminmax(values))
    zeros = values.numel() - int(torch.count_nonzero(values))
    shape = [int(size) for size in tensor.shape[:MAX_AXES]]
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorNote(plain(name, 120), shape, dtype, low, high, numel=tensor.numel(), zeros=zeros)


def _counted(bare: TensorNote, tensor: torch.Tensor, full: bool) -> TensorNote:
    values = readable(tensor)
    if values is None:
        return _whole_numbers(bare, tensor) if full else bare
    nan = int(torch.isnan(values).sum())
    posinf = int((values == math.inf).sum())
    neginf = int((values == -math.inf).sum())
    low = high = None
    zeros = None
    if full:
        zeros = values.numel() - int(torch.count_nonzero(values))
        finite = values[torch.isfinite(values)] if nan + posinf + neginf else values
        if finite.numel():
            low, high = (float(bound) for bound in torch.aminmax(finite))
    return TensorNote(
        bare.name, bare.shape, bare.dtype, low, high, nan, posinf, neginf, bare.numel, zeros
    )


def _whole_numbers(bare: TensorNote, tensor: torch.Tensor) -> TensorNote:
    dense = stored(tensor)
    if dense is None or dense.numel() == 0 or dense.data_ptr() == 0 or dense.dtype is torch.bool:
        return bare
    if dense.dtype.is_complex or dense.dtype.is_floating_point:
        return bare
    low, high = (float(bound) for bound in torch.aminmax(dense))
    return TensorNote(bare.name, bare.shape, bare.dtype, low, high, numel=bare.numel)


def bad_samples(tensor: torch.Tensor) -> list[int]:
    """Indices along the first axis that hold a non-finite element, at most `MAX_SAMPLES`."""
    return bad_rows(tensor)[0]


def bad_rows(tensor: torch.Tensor) -> tuple[list[int], int]:
    """The same, and how many there are in all."""
    if tensor.layout is not torch.strided or tensor.dim() == 0:
        return [], 0
    values = readable(tensor)
    if values is None:
        return [], 0
    bad = ~torch.isfinite(values)
    rows = (bad.flatten(1).any(1) if bad.dim() > 1 else bad).nonzero()
    found: list[int] = rows[:MAX_SAMPLES, 0].tolist()
    return found, len(rows)


def makes_new(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether an element is bad in an output and finite in every input, position by position."""
    for output in outputs:
        if not output.dtype.is_floating_point or output.layout is not torch.strided:
            continue
        bad = ~torch.isfinite(output)
        for tensor in inputs:
            if tensor.dtype.is_floating_point and tensor.layout is torch.strided:
                bad = bad & torch.isfinite(tensor)
        if bool(bad.any()):
            return True
    return False
