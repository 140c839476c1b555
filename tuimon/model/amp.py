"""The records of the AMP ledger: what a GradScaler left out, what was called in which order.

Wire rules are those of `model.records`.
"""

from __future__ import annotations

import math

import msgspec

from tuimon.model.wire import Record

# `AmpSkip.order`: how the first of the tensors was chosen.
BY_GRAPH = "graph"  # in the order in which the backward pass finished their gradients
BY_TABLE = "table"  # the last one in the order of the parameters, where the graph is not at hand

FP16_MAX = 65504.0  # largest finite number in half precision


class Headroom(msgspec.Struct, frozen=True):
    """How far the largest magnitude lies below the largest number of half precision.

    Attributes:
        name: of the parameter or module.
        absmax: largest magnitude, with the loss scale where a gradient has one.
        step: of the sample.
    """

    name: str
    absmax: float
    step: int

    @property
    def factor(self) -> float:
        """How many times larger it could be; infinite where all is 0."""
        return FP16_MAX / self.absmax if self.absmax > 0 else math.inf


class AmpSkip(Record, frozen=True, array_like=True, tag=40):
    """One update that the GradScaler left out, and the first gradient that overflowed.

    Attributes:
        step: index of the update.
        optimizer: whose.
        scale: loss scale that was in force; None where it lies on a device.
        name: the parameter whose gradient was the first to be non-finite; "" when none is known.
        nan, posinf, neginf: exact counts in that gradient; None when it was not counted.
        tensors: how many gradients are not finite.
        measured: how many gradients there are.
        order: how `name` was chosen, `BY_GRAPH` or `BY_TABLE`.
        loss_is_finite: whether the loss without its scale was finite; None when it is not known.
    """

    step: int
    optimizer: int = 0
    scale: float | None = None
    name: str = ""
    nan: int | None = None
    posinf: int | None = None
    neginf: int | None = None
    numel: int = 0
    tensors: int = 0
    measured: int = 0
    order: str = BY_TABLE
    loss_is_finite: bool | None = None


class AmpCalls(Record, frozen=True, array_like=True, tag=41):
    """What was called in which order, counted over the run; published again when it changes.

    Attributes:
        scaled: calls of `GradScaler.scale`.
        scaler_steps: calls of `GradScaler.step`.
        optimizer_steps: how many of those came to call `Optimizer.step`.
        direct_steps: calls of `Optimizer.step` past the GradScaler with gradients that carry its
            scale.
        unscaled_steps: calls of `GradScaler.step` on gradients of a loss that was not scaled.
        unscales: calls of `GradScaler.unscale_` by the script.
        updates: calls of `GradScaler.update`.
        clipped_scaled: clippings, or a norm bound, of gradients that still carried the scale.
        backward_after_unscale: backward calls that added scaled gradients to unscaled ones.
        first: name of a count that stands for a wrong order -> step at which it was seen first.
        init_scale, growth_factor, backoff_factor, growth_interval: of the scaler.
    """

    scaled: int = 0
    scaler_steps: int = 0
    optimizer_steps: int = 0
    direct_steps: int = 0
    unscaled_steps: int = 0
    unscales: int = 0
    updates: int = 0
    clipped_scaled: int = 0
    backward_after_unscale: int = 0
    first: dict[str, int] = {}
    init_scale: float | None = None
    growth_factor: float | None = None
    backoff_factor: float | None = None
    growth_interval: int | None = None


WRONG_ORDER = ("direct_steps", "unscaled_steps", "clipped_scaled", "backward_after_unscale")


class AmpVerdict(Record, frozen=True, array_like=True, tag=42):
    """What the diagnosis thinks of the loss scale; published by the scribe when it changes.

    Attributes:
        verdict: "none" | "calibrating" | "healthy" | "collapsing".
        why: one sentence.
    """

    step: int | None
    verdict: str
    why: str = ""


MAX_SKIPS = 256
FIRST_SKIPS = 64  # the beginning of the story stays


def add_skip(skips: list[AmpSkip], new: AmpSkip) -> None:
    """Append to a bounded list: its first entries and its newest ones stay."""
    skips.append(new)
    if len(skips) > MAX_SKIPS:
        del skips[FIRST_SKIPS]
