"""The device side of a track: what is submitted in one step is published when it has arrived."""

from __future__ import annotations

import time

import numpy as np
import torch

from tuimon.model.records import UNMEASURED, DeviceStats, Memory
from tuimon.train.account import Losses, ScalerView
from tuimon.train.control.clip import bound_of
from tuimon.train.device import Arrived, Lane, Operations, Sample
from tuimon.train.session import Session
from tuimon.train.stats import Plan
from tuimon.train.update import Place, Update

MEMORY_EVERY_S = 1.0


class LateStats:
    """Owns the lane of one plan. Used by the training thread only.

    Attributes:
        newest: what has arrived last; None before anything has.
    """

    def __init__(self, plan: Plan, device: torch.device, operations: Operations) -> None:
        self._plan = plan
        self._device = device
        self._lane = Lane(plan, device, operations)
        self._said_dropped = 0
        self._memory_at_s = 0.0
        self.newest: DeviceStats | None = None

    def measure(self, *, already_clipped: bool = False) -> None:
        """Measure the gradients as they are now, once per update, or not at all when too late."""
        if already_clipped and not self._lane.measured:
            self.leave_out()
        else:
            self._lane.reduce(self._plan)

    def leave_out(self) -> None:
        """This update is not measured."""
        self._lane.leave_out()

    def forget(self) -> None:
        """Drop a measurement that no update followed."""
        self._lane.forget()

    def submit(
        self, place: Place, update: Update, *, losses: Losses, scaler: ScalerView | None
    ) -> bool:
        """Send the running update on its way; False when it had to be dropped."""
        clipping = [c for c in update.calls if c.max_norm is not None and c.total is not None]
        sample = Sample(
            place.step,
            place.optimizer,
            place.epoch,
            scaled=update.scaled,
            bound=bound_of(clipping),
            by_value=any(c.max_norm is not None and c.total is None for c in update.calls),
        )
        return self._lane.submit(
            self._plan,
            sample,
            losses=losses.pending,
            scale=scaler.scale if scaler is not None else None,
            found_inf=scaler.found_inf if scaler is not None else (),
            total=clipping[-1].total if clipping else None,
        )

    def flush(self, session: Session, deadline_s: float) -> None:
        """Publish what is still in flight, until `time.monotonic` reaches the deadline."""
        while self._lane.flying and time.monotonic() < deadline_s:
            self.publish(session)
            time.sleep(0.001)
        self.abandon(session)

    def abandon(self, session: Session) -> None:
        """Publish what has arrived and give up the rest."""
        self.publish(session)
        session.count_lost(self._lane.flying, "device samples: given up in flight")

    def publish(self, session: Session) -> None:
        """Publish what has arrived, and what was lost; never waits."""
        for arrived in self._lane.collect():
            self.newest = self._record(arrived)
            session.publish(self.newest)
        dropped = self._lane.dropped
        session.count_lost(dropped - self._said_dropped, "device samples: every slot in flight")
        self._said_dropped = dropped
        now_s = time.monotonic()
        if self._device.type == "cuda" and now_s >= self._memory_at_s:
            self._memory_at_s = now_s + MEMORY_EVERY_S
            session.publish(memory(self._device))

    def _record(self, arrived: Arrived) -> DeviceStats:
        plan = self._plan
        norms = np.full(plan.table_size, np.nan, np.float32)
        flags = np.full(plan.table_size, UNMEASURED, np.uint8)
        norms[plan.places] = arrived.norms
        flags[plan.places] = arrived.flags
        return DeviceStats(
            step=arrived.sample.step,
            optimizer=arrived.sample.optimizer,
            epoch=arrived.sample.epoch,
            loss=arrived.loss,
            loss_sum=arrived.loss_sum,
            grad_norm=arrived.grad_norm,
            grad_norm_clipped=arrived.grad_norm_clipped,
            loss_scale=arrived.loss_scale,
            found_inf=arrived.found_inf,
            norms=norms.tobytes(),
            flags=flags.tobytes() if flags.any() else b"",
        )


def memory(device: torch.device) -> Memory:
    """The allocator's own account; the nested form is not flattened and sorted for us."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    allocated = stats["allocated_bytes"]["all"]
    return Memory(
        time_s=time.time(),
        device=str(device),
        allocated_bytes=allocated["current"],
        reserved_bytes=stats["reserved_bytes"]["all"]["current"],
        peak_bytes=allocated["peak"],
    )
