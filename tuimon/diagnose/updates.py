"""One attempted update as detectors judge it, put together from the records that speak of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tuimon.diagnose.gradients import gradient_bits
from tuimon.diagnose.incidents import MAX_WAITING
from tuimon.model.records import (
    HELD_UPDATE,
    NON_FINITE,
    AnyRecord,
    BadTensor,
    DeviceStats,
    Step,
)
from tuimon.model.units import number


@dataclass
class Update:
    """One attempted update of one optimizer.

    Attributes:
        measured: the record that carries its norms and flags.
        losses: what is known of its loss, last value and sum.
        scale: loss scale; None without a GradScaler.
        bad: exact counts of tensors that tripped.
        lrs: learning rate of each param_group; None where it is not known.
        is_held: somebody is still to decide about it.
    """

    measured: Step | DeviceStats
    losses: list[float]
    skipped: bool
    scale: float | None
    bad: list[BadTensor]
    lrs: list[float | None] = field(default_factory=list)
    is_held: bool = False

    @property
    def loss(self) -> float | None:
        """The loss that this update follows; None when it is not known."""
        return self.losses[-1] if self.losses else None

    @property
    def step(self) -> int:
        return self.measured.step

    @property
    def optimizer(self) -> int:
        return self.measured.optimizer

    @property
    def flags(self) -> bytes:
        return self.measured.flags

    @cached_property
    def bits(self) -> int | None:
        """Flag bits of all gradients or-ed; None when they were not measured."""
        return gradient_bits(self.measured)

    @property
    def is_poisonous(self) -> bool:
        """A gradient that is not finite went into the weights."""
        return not self.skipped and bool((self.bits or 0) & NON_FINITE)

    @property
    def fate(self) -> str:
        """What became of the update, for the end of a sentence."""
        if self.skipped and self.scale is not None:
            return f"the GradScaler left the update out at scale {number(self.scale)}"
        if self.skipped:
            return "the update was left out"
        if self.bits is None:
            return "the gradients were not measured"
        if self.bits & NON_FINITE and self.is_held:
            return "the update is held"
        if self.bits & NON_FINITE:
            return "the update was made: the weights take it over"
        return "the gradients are finite"


class Updates:
    """Joins `Step` and `DeviceStats`, so that an update is judged once and as a whole."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], Step] = {}

    def see(self, record: AnyRecord) -> Iterator[Update]:
        """The updates that this record completes."""
        if isinstance(record, Step):
            if not record.late:
                yield _alone(record)
                return
            self._waiting[record.optimizer, record.step] = record
            if len(self._waiting) > MAX_WAITING:
                yield _alone(self._waiting.pop(next(iter(self._waiting))))
        elif isinstance(record, DeviceStats):
            yield _joined(record, self._waiting.pop((record.optimizer, record.step), None))

    def close(self) -> Iterator[Update]:
        """The updates whose device part will not come any more."""
        while self._waiting:
            yield _alone(self._waiting.pop(next(iter(self._waiting))))


def _alone(record: Step) -> Update:
    return Update(
        measured=record,
        losses=_losses(record),
        skipped=record.skipped,
        scale=record.loss_scale,
        bad=record.bad,
        lrs=record.lrs,
        is_held=record.left_out == HELD_UPDATE,
    )


def _joined(record: DeviceStats, host: Step | None) -> Update:
    scale = record.loss_scale
    if host is None:
        return Update(record, _losses(record), bool(record.found_inf), scale, [])
    return Update(
        measured=record,
        losses=_losses(record) + _losses(host),
        skipped=host.skipped or bool(record.found_inf),
        scale=host.loss_scale if scale is None else scale,
        bad=host.bad,
        lrs=host.lrs,
    )


def _losses(record: Step | DeviceStats) -> list[float]:
    return [value for value in (record.loss, record.loss_sum) if value is not None]
