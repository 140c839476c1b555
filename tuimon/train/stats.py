"""Gradient statistics of one optimizer: L2 norms, flags and exact counts of what tripped.

Reads gradients, changes nothing. Everything here reads results on the host at once and is meant
for CPU tensors; `device.py` has the form that never waits for a device.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter, is_, mul

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tuimon.model.records import (
    MAX_BAD,
    NAN,
    NEG_INF,
    NO_GRAD,
    NORM_OVERFLOW,
    POS_INF,
    UNMEASURED,
    BadTensor,
)

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.uint8]

# Kinds whose norm torch computes in one vectorised call; others go one by one.
FOREACH_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

FEW = 24  # up to so many norms, reading one by one is faster than stacking them (measured)

_gradient_of = attrgetter("grad")
_number_in = torch.Tensor.item


class Measured(msgspec.Struct):
    """What the gradients of one optimizer looked like, before any clipping, unscaled.

    Attributes:
        wire: float32 per parameter of the plan as bytes, NaN where there is none; what a healthy
            step needs of its norms.
        flags: uint8 per parameter; None when all are zero.
        total: L2 norm over all of them; None when nothing was measured.
        bad: exact counts of the first tensors that tripped, when they were asked for.
        bad_total: how many tensors hold a non-finite value.
    """

    wire: bytes
    flags: Flags | None = None
    total: float | None = None
    bad: list[BadTensor] = []
    bad_total: int = 0

    @property
    def norms(self) -> Floats:
        """The norms to calculate with."""
        return np.frombuffer(self.wire, np.float32)


class Plan:
    """The parameters of one optimizer and how their gradients are measured.

    Attributes:
        params: in the order of `model.parameters()`, which is the order of a user's own clipping.
        names: one for each.
        places: index of each in the layer table.
        whole: the table has exactly these parameters in this order.
        copies: on how many ranks each element of a parameter lies; None where none is distributed.
    """

    def __init__(
        self, params: list[torch.Tensor], names: list[str], places: list[int], table_size: int
    ) -> None:
        self.params = params
        self.names = names
        self.places = np.array(places, dtype=np.int64)
        self.whole = places == list(range(table_size))
        self.table_size = table_size
        self.ids = {id(param) for param in params}
        self.uniform = _uniform(params)
        self.copies = None if self.uniform else _copies(params)

    def is_for(self, params: Sequence[torch.Tensor], places: Sequence[int]) -> bool:
        """Whether it measures exactly these parameters for these places of the table."""
        return [*map(id, self.params)] == [*map(id, params)] and self.places.tolist() == places


def _uniform(params: Sequence[torch.Tensor]) -> bool:
    """Whether one `_foreach_norm` in float32 measures all gradients."""
    return bool(params) and all(
        type(param) in (nn.Parameter, torch.Tensor)
        and param.layout is torch.strided
        and param.dtype in FOREACH_DTYPES
        and param.dtype is params[0].dtype
        and param.dtype is not torch.float64
        and param.device == params[0].device
        and param.device.type != "meta"
        and param.numel() > 0
        for param in params
    )


def _copies(params: Sequence[torch.Tensor]) -> Floats | None:
    places = [getattr(param, "placements", None) for param in params]
    if not any(places):
        return None
    everywhere = torch.distributed.get_world_size()
    copies = np.full(len(params), everywhere, np.float32)
    for index, (param, placements) in enumerate(zip(params, places, strict=True)):
        if placements:
            mesh = param.device_mesh  # type: ignore[attr-defined]
            held = [mesh.size(axis) for axis, each in enumerate(placements) if each.is_replicate()]
            copies[index] = math.prod(held)
    return copies


def share(plan: Plan, measured: Measured | None) -> float | None:
    """What this rank adds to the squared norm of all gradients; None where none is distributed."""
    if plan.copies is None or measured is None:
        return None
    squares = measured.norms.astype(np.float64) ** 2 / plan.copies
    if measured.flags is not None:
        squares = squares[(measured.flags & (NO_GRAD | UNMEASURED)) == 0]
    return float(squares.sum())


def measure(
    plan: Plan,
    *,
    divisor: float | None = None,
    spied: Mapping[int, torch.Tensor] | None = None,
    exact: bool = False,
) -> Measured:
    """Measure the gradients of a plan.

    Args:
        plan: what to measure.
        divisor: the loss scale that the gradients still carry; None when they carry none.
        spied: id of a gradient -> its L2 norm, taken from the user's own clipping.
        exact: count the elements of tensors that tripped.
    """
    grads: list[torch.Tensor | None] = [*map(_gradient_of, plan.params)]
    measured = _quick(grads, spied) if plan.uniform else None
    if measured is None:
        measured = _careful(grads, spied)
    if measured.total is None or not math.isfinite(measured.total):
        _classify(plan, grads, measured, exact)
    if divisor is not None:
        unscale(measured, divisor)
    return measured


def _quick(
    grads: list[torch.Tensor | None], spied: Mapping[int, torch.Tensor] | None
) -> Measured | None:
    """All gradients by one call; None when some gradient needs more care.

    Runs at every step: its loops are those of the interpreter, not of Python.
    """
    if any(map(is_, grads, repeat(None))):
        return None
    norms: Sequence[torch.Tensor] = ()
    if spied:
        known = [*map(spied.get, map(id, grads))]
        missing = sum(map(is_, known, repeat(None)))
        if 0 < missing < len(grads):
            return None
        if not missing:
            norms = known  # type: ignore[assignment]
    had_graph = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # a tenth of the price of `torch.no_grad`
    try:
        if not norms:
            norms = torch._foreach_norm(grads, 2.0, dtype=torch.float32)  # type: ignore[arg-type]
        if len(norms) > FEW:
            values: Floats = torch.stack(tuple(norms)).numpy().astype(np.float32, copy=False)
            wide = values.astype(np.float64)
            return Measured(values.tobytes(), None, math.sqrt(float(wide @ wide)))
        numbers = [*map(_number_in, norms)]
    except (RuntimeError, TypeError):
        return None
    finally:
        torch._C._set_grad_enabled(had_graph)
    total = math.sqrt(math.fsum(map(mul, numbers, numbers)))
    return Measured(array("f", numbers).tobytes(), None, total)


def _careful(
    grads: list[torch.Tensor | None], spied: Mapping[int, torch.Tensor] | None
) -> Measured:
    """Every kind of gradient: missing, sparse, integer, complex, meta, subclasses, mixed."""
    count = len(grads)
    wide = np.full(count, np.nan)
    flags: Flags = np.zeros(count, np.uint8)
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for index, grad in enumerate(grads):
        if grad is None:
            flags[index] = NO_GRAD
        elif spied and (norm := spied.get(id(grad))) is not None:
            wide[index] = float(norm)
        elif (values := measurable(grad)) is None:
            flags[index] = UNMEASURED
        else:
            groups.setdefault((values.device, values.dtype), []).append((index, values))
    with torch.no_grad():
        for (_, dtype), members in groups.items():
            wanted = torch.float64 if dtype is torch.float64 else torch.float32
            norms = torch._foreach_norm([values for _, values in members], 2.0, dtype=wanted)
            for (index, _), norm in zip(members, norms, strict=True):
                wide[index] = float(norm)
    known = wide[flags == 0]
    total = math.sqrt(float(known @ known)) if known.size else None
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    return Measured(narrow.tobytes(), flags if flags.any() else None, total)


def measurable(tensor: torch.Tensor) -> torch.Tensor | None:
    """A plain strided floating tensor with the same values; None when there is none to measure.

    A distributed tensor gives its local shard (no collective is issued), a sparse one its values
    (duplicates of an uncoalesced one count apart), a complex one its real view.
    """
    if tensor.device.type == "meta":
        return None
    local = getattr(tensor, "to_local", None)
    if local is not None:
        tensor = local()
    if type(tensor) not in (torch.Tensor, nn.Parameter):
        return None
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return None
    tensor = tensor.detach()
    if tensor.dtype.is_complex:
        return torch.view_as_real(tensor)
    if not tensor.dtype.is_floating_point:
        return None
    return tensor if tensor.dtype in FOREACH_DTYPES else tensor.float()


def _classify(
    plan: Plan, grads: Sequence[torch.Tensor | None], measured: Measured, exact: bool
) -> None:
    """Confirm what a non-finite norm only suspects, tensor by tensor."""
    flags = measured.flags
    if flags is None:
        flags = np.zeros(len(grads), np.uint8)
    known = (flags & (NO_GRAD | UNMEASURED)) == 0
    for index in map(int, np.flatnonzero(known & ~np.isfinite(measured.norms))):
        grad = grads[index]
        assert grad is not None
        values = measurable(grad)
        if values is None:
            continue
        flag = flags_of(values)
        if flag == 0:
            flags[index] |= NORM_OVERFLOW
            continue
        flags[index] |= flag
        measured.bad_total += 1
        if exact and len(measured.bad) < MAX_BAD:
            measured.bad.append(count_bad("gradient", plan.names[index], values))
    measured.flags = flags if flags.any() else None


def flags_of(values: torch.Tensor) -> int:
    """Which of NaN, +Inf and -Inf a plain floating tensor holds.

    `aminmax` answers for a tensor without NaN in one pass; behind a NaN it sees nothing, so the
    infinities are then looked for by themselves.
    """
    with torch.no_grad():
        low, high = (float(bound) for bound in torch.aminmax(values))
        if math.isnan(low) or math.isnan(high):
            rest = torch.nan_to_num(values, nan=0.0, posinf=math.inf, neginf=-math.inf)
            low, high = (float(bound) for bound in torch.aminmax(rest))
            return NAN | _infinities(low, high)
    return _infinities(low, high)


def _infinities(low: float, high: float) -> int:
    return (POS_INF if high == math.inf else 0) | (NEG_INF if low == -math.inf else 0)


def count_bad(what: str, name: str, values: torch.Tensor) -> BadTensor:
    """Exact counts of the non-finite elements of a plain floating tensor."""
    with torch.no_grad():
        return BadTensor(
            what=what,
            name=name,
            nan=int(torch.isnan(values).sum()),
            posinf=int((values == math.inf).sum()),
            neginf=int((values == -math.inf).sum()),
            numel=values.numel(),
        )


def unscale(measured: Measured, divisor: float) -> None:
    """Divide by the loss scale; a scale that cannot divide leaves the norms unmeasured."""
    if divisor > 0 and math.isfinite(divisor):
        measured.wire = (measured.norms / np.float32(divisor)).tobytes()
        if measured.total is not None:
            measured.total /= divisor
        return
    flags = measured.flags
    if flags is None:
        flags = np.zeros_like(measured.norms, np.uint8)
    flags[(flags & (NAN | POS_INF | NEG_INF)) == 0] |= UNMEASURED
    measured.flags = flags
    measured.wire = np.full_like(measured.norms, np.nan).tobytes()
    measured.total = math.nan if measured.bad_total else None


def clipped_norm(measured: Measured, factors: Sequence[float] | float | None) -> float | None:
    """Total norm after each gradient was multiplied by its clip factor."""
    if factors is None or measured.total is None:
        return measured.total
    if isinstance(factors, float):
        return measured.total * factors
    with np.errstate(invalid="ignore", over="ignore"):
        wide = measured.norms.astype(np.float64) * np.asarray(factors, np.float64)
    if measured.flags is not None:
        wide = wide[(measured.flags & (NO_GRAD | UNMEASURED)) == 0]
    return math.sqrt(float(wide @ wide))


def spread(plan: Plan, measured: Measured) -> tuple[bytes, bytes]:
    """Norms and flags in the order of the layer table, as the wire has them."""
    if plan.whole:
        flags = b"" if measured.flags is None else measured.flags.tobytes()
        return measured.wire, flags
    norms = np.full(plan.table_size, np.nan, np.float32)
    all_flags = np.full(plan.table_size, UNMEASURED, np.uint8)
    norms[plan.places] = measured.norms
    all_flags[plan.places] = 0 if measured.flags is None else measured.flags
    return norms.tobytes(), all_flags.tobytes()


def host_number(value: object) -> float | None:
    """A number, or the one in a one-element tensor of host memory; None for anything else.

    A tensor on a device is not read: that would make the device wait.
    """
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.numel() != 1 or value.dtype.is_complex:
            return None
        return float(value.item())
    if isinstance(value, int | float | np.integer | np.floating):
        return float(value)
    return None
