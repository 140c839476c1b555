"""A cheap, bounded look at one tensor of a batch.

Reads tensors in host memory only and changes nothing: no random numbers, no storage handed to
NumPy (torch would refuse to resize it afterwards), no operation that a mode of the user's sees.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tuimon.model.batches import TensorSummary
from tuimon.model.text import plain

MAX_SAMPLES = 512  # compared for duplicates
MAX_COMPARED = 64  # elements of each sample by which candidates are found
MAX_CONFIRMED = 32  # candidates that are compared as a whole
MIN_SAMPLES = 8  # with fewer, a feature is easily constant by chance
MAX_FEATURES = 4096
MAX_AXES = 16  # of a shape that is told

_modes = torch._C._len_torch_dispatch_stack


def summarise(
    name: str, tensor: torch.Tensor, limit: int, *, samples: bool = True
) -> TensorSummary:
    """Look at a tensor; call it inside `modes.apart`.

    Args:
        name: where it stood.
        tensor: any tensor; one that cannot be read for nothing is described only.
        limit: elements to look at.
        samples: also compare its samples with each other.
    """
    name = plain(name, 120)
    reason = why_not(tensor)
    if not is_plain(tensor):
        return TensorSummary(name, [], "", "", why_not=reason)
    shape = [int(size) for size in tensor.shape[:MAX_AXES]]
    dtype = str(tensor.dtype).removeprefix("torch.")
    device = str(tensor.device)
    if reason:
        return TensorSummary(name, shape, dtype, device, why_not=reason)
    try:
        figures = _look(tensor, limit, samples)
    except (RuntimeError, TypeError) as error:
        # Kinds of numbers that torch stores and cannot compare.
        reason = plain(f"not readable: {error}", 100)
        return TensorSummary(name, shape, dtype, device, why_not=reason)
    return TensorSummary(name, shape, dtype, device, is_computed=not tensor.is_leaf, **figures)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether shape and strides of a tensor say where its elements are."""
    if type(tensor) not in (torch.Tensor, nn.Parameter):
        return False
    return not tensor.is_nested and tensor.layout is torch.strided


def _look(tensor: torch.Tensor, limit: int, samples: bool) -> dict[str, Any]:
    part, steps = bounded(tensor, limit)
    values = _comparable(part)
    figures = {"looked_at": values.numel()} | _figures(values, steps)
    if samples:
        figures |= _constant(tensor, values) | _duplicates(tensor)
    return figures


def why_not(tensor: torch.Tensor) -> str:
    """Why a tensor is not looked at; "" when it can be."""
    if not is_plain(tensor):
        return f"a {plain(type(tensor).__name__, 60)}, not a plain dense tensor"
    if tensor.device.type != "cpu":
        return f"on {tensor.device}: not read, so that nothing waits for it"
    if tensor.is_quantized:
        return "quantised"
    if tensor.numel() == 0:
        return "empty"
    if _modes():
        return "a dispatch mode of the script is active"
    return ""


def bounded(
    tensor: torch.Tensor, limit: int, first: int = 0
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A view of about `limit` elements at most, and the step along each dimension."""
    steps = [1] * tensor.dim()
    for axis in range(first, tensor.dim()):
        count = tensor.numel()
        if count <= limit:
            break
        steps[axis] = min(tensor.shape[axis], math.ceil(count / limit))
        picked = (slice(None),) * axis + (slice(None, None, steps[axis]),)
        tensor = tensor[picked]
    return tensor, tuple(steps)


def _comparable(part: torch.Tensor) -> torch.Tensor:
    """The same values in a kind that every reduction knows."""
    if part.dtype.is_complex:
        part = torch.view_as_real(part.resolve_conj())
    if part.dtype in (torch.float32, torch.float64, torch.int64, torch.int32):
        return part
    if part.dtype.is_floating_point:
        return part.float()
    return part.to(torch.int64)


def _figures(values: torch.Tensor, steps: tuple[int, ...]) -> dict[str, Any]:
    low, high = (bound.item() for bound in torch.aminmax(values))
    figures: dict[str, Any] = {"nan": 0, "posinf": 0, "neginf": 0}
    if not (math.isfinite(low) and math.isfinite(high)):
        figures, values = _non_finite(values, steps)
        if values.numel() == 0:
            return figures
        low, high = (bound.item() for bound in torch.aminmax(values))
    variance, mean = torch.var_mean(values.double(), correction=0)
    zeros = values.numel() - int(torch.count_nonzero(values))
    return figures | {
        "low": float(low),
        "high": float(high),
        "mean": mean.item(),
        "std": math.sqrt(max(0.0, variance.item())),
        "zero_frac": zeros / values.numel(),
    }


def _non_finite(
    values: torch.Tensor, steps: tuple[int, ...]
) -> tuple[dict[str, Any], torch.Tensor]:
    """Counts and the place of the first element that is not finite; and the finite elements."""
    bad = ~torch.isfinite(values)
    nan = int(torch.isnan(values).sum())
    posinf = int((values == math.inf).sum())
    first = bad.nonzero()[0].tolist()
    samples = int(bad.flatten(1).any(1).sum()) if bad.dim() > 1 else int(bad.sum())
    found: dict[str, Any] = {
        "nan": nan,
        "posinf": posinf,
        "neginf": int(bad.sum()) - nan - posinf,
        # The pair of a complex number is one element of the tensor.
        "first_bad": [at * step for at, step in zip(first, steps, strict=False)],
        "bad_samples": samples,
    }
    return found, values[~bad]


def _constant(tensor: torch.Tensor, values: torch.Tensor) -> dict[str, Any]:
    """How many columns of a table have one value only; features of text or images are no table."""
    is_table = tensor.dim() == 2 and values.dim() == 2 and tensor.dtype.is_floating_point
    if not is_table or values.shape[0] < MIN_SAMPLES or not 1 < tensor.shape[1] <= MAX_FEATURES:
        return {}
    if values.shape[1] != tensor.shape[1]:
        return {}
    low, high = torch.aminmax(values, dim=0)
    return {"features": values.shape[1], "constant_features": int((low == high).sum())}


def _duplicates(tensor: torch.Tensor) -> dict[str, Any]:
    """Samples that equal an earlier one: found by some of their elements, confirmed by all."""
    if tensor.dim() < 2 or not 2 <= tensor.shape[0] <= MAX_SAMPLES:
        return {}
    width = tensor[0].numel()
    if width < 2:
        return {}
    picked, _ = bounded(tensor, MAX_COMPARED * tensor.shape[0], first=1)
    # A copy of our own: its memory may be read as bytes.
    rows = picked.reshape(tensor.shape[0], -1).clone(memory_format=torch.contiguous_format)
    whole = rows.shape[1] == width
    seen: dict[bytes, int] = {}
    found = confirmed = 0
    pair: list[int] = []
    for index, row in enumerate(rows.view(torch.uint8).numpy()):
        key = row.tobytes()
        earlier = seen.setdefault(key, index)
        if earlier == index:
            continue
        if not whole:
            confirmed += 1
            if confirmed > MAX_CONFIRMED:
                break
            if not torch.equal(tensor[index], tensor[earlier]):
                continue
        found += 1
        pair = pair or [index, earlier]
    return {"duplicates": found, "duplicate_pair": pair}
