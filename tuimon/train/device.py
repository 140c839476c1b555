"""Statistics of gradients on a device, brought to the host without ever waiting for the device.

Kernels and one copy into pinned memory go into the current stream; an event tells later whether
they are done. What cannot be submitted because every slot is still in flight is dropped and
counted. Allocation, copy and events are arguments, so that everything else runs on any tensor.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from tuimon.model.records import NAN, NEG_INF, NO_GRAD, NORM_OVERFLOW, POS_INF, UNMEASURED
from tuimon.train.control.clip import factor
from tuimon.train.stats import Flags, Floats, Plan, measurable

SLOTS = 8  # a host that runs further ahead than this loses samples, not time
KINDS = 3  # L2 norm, largest magnitude, largest value of each gradient
_LOSS, _LOSS_SUM, _SCALE, _FOUND_INF, _TOTAL, _EXTRAS = 0, 1, 2, 3, 4, 5


class Mark(Protocol):
    """An event in a stream."""

    def record(self) -> None:
        """Put it behind everything submitted so far."""
        ...

    def query(self) -> bool:
        """Whether all of that is done; never waits."""
        ...


class Operations(Protocol):
    """What is different on a device."""

    def pinned(self, count: int) -> torch.Tensor:
        """float32[count] in host memory that a device can write to by itself."""
        ...

    def mark(self) -> Mark:
        """A new event."""
        ...


class CudaOperations:
    """The real thing, for one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pinned(self, count: int) -> torch.Tensor:
        """Page-locked, of the dtype of its source: a copy that converts would wait."""
        return torch.empty(count, dtype=torch.float32, device="cpu", pin_memory=True)

    def mark(self) -> Mark:
        """An event without timing, recorded in the current stream of the device."""
        return _CudaMark(self._device)


class _CudaMark:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._device))

    def query(self) -> bool:
        return bool(self._event.query())


@dataclass(slots=True)
class Sample:
    """What is known on the host about one submitted step.

    Attributes:
        step, optimizer, epoch: as in the record.
        present: places in the plan whose gradient was measured, in the order of the values.
        flags: uint8 per parameter of the plan, what the host knows (missing, unmeasured).
        scaled: the norms still carry the loss scale.
        bound: of the clipping whose total norm is in the sample; None without clipping.
        has: which of the extras were given.
        by_value: elements were clipped too, and nobody knows the norm that was left.
    """

    step: int
    optimizer: int
    epoch: int
    present: list[int] = field(default_factory=list)
    flags: Flags = field(default_factory=lambda: np.zeros(0, np.uint8))
    scaled: bool = False
    bound: float | None = None
    has: tuple[bool, ...] = (False,) * _EXTRAS
    by_value: bool = False


@dataclass(frozen=True, slots=True)
class Arrived:
    """A sample whose values are on the host."""

    sample: Sample
    norms: Floats
    flags: Flags
    loss: float | None
    loss_sum: float | None
    loss_scale: float | None
    found_inf: bool | None
    grad_norm: float | None
    grad_norm_clipped: float | None


class Lane:
    """Slots for one plan on one device. Used by the training thread only.

    Attributes:
        dropped: samples given up because all slots were in flight.
    """

    def __init__(self, plan: Plan, device: torch.device, operations: Operations) -> None:
        self._count = len(plan.params)
        self._device = device
        size = KINDS * self._count + _EXTRAS
        # Explicit dtype and device: the user may have changed both defaults.
        self._packed = torch.zeros(size, dtype=torch.float32, device=device)
        self._free = deque((operations.pinned(size), operations.mark()) for _ in range(SLOTS))
        self._reduced: tuple[list[int], Flags] | None = None
        self._flying: deque[tuple[Sample, torch.Tensor, Mark]] = deque()
        self.dropped = 0

    @torch.no_grad()
    def reduce(self, plan: Plan) -> None:
        """Measure the gradients as they are now, for the next `submit`; before any clipping."""
        if self._reduced is not None:
            return
        present, flags, tensors = self._tensors(plan)
        packed = self._packed
        packed.fill_(math.nan)
        if tensors:
            width = len(tensors)
            for kind, values in enumerate(_reductions(tensors)):
                start = kind * self._count
                packed[start : start + width].copy_(self._together(values), non_blocking=True)
        self._reduced = present, flags

    @property
    def measured(self) -> bool:
        """Whether the next `submit` carries what `reduce` measured, or what was left out."""
        return self._reduced is not None

    def leave_out(self) -> None:
        """The next `submit` carries no gradients."""
        self._reduced = [], np.full(self._count, UNMEASURED, np.uint8)

    def forget(self) -> None:
        """Drop what `reduce` measured."""
        self._reduced = None

    @property
    def flying(self) -> int:
        """Samples on their way."""
        return len(self._flying)

    @torch.no_grad()
    def submit(
        self,
        plan: Plan,
        sample: Sample,
        *,
        losses: Sequence[torch.Tensor] = (),
        scale: torch.Tensor | None = None,
        found_inf: Sequence[torch.Tensor] = (),
        total: torch.Tensor | None = None,
    ) -> bool:
        """Put a step's statistics on their way; False when no slot was free.

        Args:
            plan: whose gradients are measured.
            sample: completed here with what the host can tell.
            losses: of the backward calls since the last update.
            scale: of the GradScaler.
            found_inf: its flags.
            total: total norm that clipping computed.
        """
        if self._reduced is None:
            self.reduce(plan)
        assert self._reduced is not None
        sample.present, sample.flags = self._reduced
        self._reduced = None
        if not self._free:
            self.dropped += 1
            return False
        packed = self._packed
        extras: list[torch.Tensor | None] = [None] * _EXTRAS
        if losses:
            extras[_LOSS] = losses[-1]
            extras[_LOSS_SUM] = self._together([loss.reshape(()) for loss in losses]).sum()
        extras[_SCALE], extras[_TOTAL] = scale, total
        if found_inf:
            extras[_FOUND_INF] = self._together(list(found_inf)).sum()
        base = KINDS * self._count
        for index, value in enumerate(extras):
            if value is not None:
                packed[base + index].copy_(value.detach().reshape(()), non_blocking=True)
        sample.has = tuple(value is not None for value in extras)
        slot, mark = self._free.popleft()
        slot.copy_(packed, non_blocking=True)
        mark.record()
        self._flying.append((sample, slot, mark))
        return True

    def collect(self) -> list[Arrived]:
        """What has arrived since the last call, oldest first; never waits."""
        done = []
        while self._flying and self._flying[0][2].query():
            sample, slot, mark = self._flying.popleft()
            done.append(read(sample, slot.numpy().copy(), self._count))
            self._free.append((slot, mark))
        return done

    def _tensors(self, plan: Plan) -> tuple[list[int], Flags, list[torch.Tensor]]:
        """(places of the gradients that can be measured, flags of all, those gradients)."""
        present: list[int] = []
        flags: Flags = np.zeros(self._count, np.uint8)
        tensors = []
        for index, param in enumerate(plan.params):
            grad = param.grad
            if grad is None:
                flags[index] = NO_GRAD
                continue
            values = measurable(grad)
            # Host memory would have to be waited for on its way to the device.
            if values is None or values.device.type != self._device.type:
                flags[index] = UNMEASURED
                continue
            present.append(index)
            tensors.append(values)
        return present, flags, tensors

    def _together(self, values: list[torch.Tensor]) -> torch.Tensor:
        """One float32 vector on our device; tensors of other devices are copied without waiting."""
        here = [
            value.detach().to(self._device, torch.float32, non_blocking=True) for value in values
        ]
        return torch.stack(here)


def _reductions(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """L2 norms, largest magnitudes and largest values, each in the order of `tensors`."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(index)
    results: list[list[torch.Tensor]] = [[tensors[0]] * len(tensors) for _ in range(KINDS)]
    for (_, dtype), indices in groups.items():
        group = [tensors[index] for index in indices]
        wanted = torch.float64 if dtype is torch.float64 else torch.float32
        kinds = (
            torch._foreach_norm(group, 2.0, dtype=wanted),
            torch._foreach_norm(group, math.inf, dtype=wanted),
            torch._foreach_max(group),
        )
        for kind, values in enumerate(kinds):
            for index, value in zip(indices, values, strict=True):
                results[kind][index] = value
    return results


def read(sample: Sample, values: Floats, count: int) -> Arrived:
    """Turn a slot's float32 values into statistics.

    A NaN hides infinities of the same gradient, and +Inf hides -Inf: the reductions say no more.
    """
    width = len(sample.present)
    places = np.array(sample.present, dtype=np.int64)
    norm, magnitude, largest = (values[k * count : k * count + width] for k in range(KINDS))
    flags = sample.flags.copy()
    has_nan = np.isnan(norm)
    infinite = np.isinf(magnitude) & ~has_nan
    above = infinite & (largest == math.inf)
    overflow = np.isinf(norm) & np.isfinite(magnitude)
    for mask, flag in (
        (has_nan, NAN),
        (above, POS_INF),
        (infinite & ~above, NEG_INF),
        (overflow, NORM_OVERFLOW),
    ):
        flags[places[mask]] |= flag
    extras = [
        float(value) if given else None
        for value, given in zip(values[KINDS * count :], sample.has, strict=True)
    ]
    scale = extras[_SCALE]
    divisor = scale if sample.scaled and scale is not None and scale > 0 else 1.0
    norms = np.full(count, np.nan, np.float32)
    norms[places] = norm / np.float32(divisor)
    wide = norm.astype(np.float64)
    total = math.sqrt(float(wide @ wide)) / divisor if width else None
    clipped, used = total, extras[_TOTAL]
    if total is not None and sample.bound is not None and used is not None:
        clipped = total * factor(sample.bound, used)
    found = extras[_FOUND_INF]
    return Arrived(
        sample=sample,
        norms=norms,
        flags=flags,
        loss=extras[_LOSS],
        loss_sum=extras[_LOSS_SUM],
        loss_scale=scale,
        found_inf=None if found is None else found != 0.0,
        grad_norm=total,
        grad_norm_clipped=None if sample.by_value else clipped,
    )
