"""Remedies of a learning-rate schedule that fit how its rate was seen to go."""

from __future__ import annotations

import math

from tuimon.diagnose.findings import Remedy
from tuimon.model.units import number

_MANY = 10.0  # times the first rate: a bound to start from

SPENT = Remedy(
    text="Let the schedule last as long as the training: call scheduler.step() where its unit is "
    "meant (after the epoch rather than after each update), and give it the number of updates "
    "that there will be.",
    code="scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)\n"
    "scheduler.step()  # once for each of these total_steps",
)
NEGATIVE = Remedy(
    text="Keep the rate above 0: end the schedule where it reaches 0, or bound its factor.",
    code="scheduler = torch.optim.lr_scheduler.LambdaLR(\n"
    "    optimizer, lambda step: max(0.0, 1.0 - step / total_steps)\n)",
)


def bounded(factor: float | None) -> Remedy:
    """Of a rate that only rises.

    Args:
        factor: by which it does in each update, where it is always the same one.
    """
    if factor is None:
        return Remedy(
            text="Bound the rate and let it come down again: nothing ends its rise.",
            code="scheduler = torch.optim.lr_scheduler.OneCycleLR(\n"
            "    optimizer, max_lr=highest, total_steps=total_steps\n)",
        )
    given = number(factor)
    return Remedy(
        text=f"Take a factor below 1, or bound it: one of {given} in each update, as of "
        f"ExponentialLR with a gamma of {given}, raises the rate without end.",
        code="scheduler = torch.optim.lr_scheduler.ExponentialLR("
        f"optimizer, gamma={number(1 / factor)})\n"
        "# or, where it is to rise at first:\n"
        "scheduler = torch.optim.lr_scheduler.LambdaLR(\n"
        f"    optimizer, lambda step: min({given}**step, {_MANY:g})\n)",
    )


def not_raised(step: int, before: float, after: float) -> Remedy:
    """Of a rate that was raised at once."""
    return Remedy(
        text=f"Leave the rate at {number(before)} from step {step:,} on, or lower it there: a "
        f"milestone or a restart that multiplies it needs a factor below 1.",
        code="scheduler = torch.optim.lr_scheduler.MultiStepLR(\n"
        f"    optimizer, milestones=[{step}], gamma=0.1  # it was {number(after / before)}\n)",
    )


def factor_of(first: tuple[int, float], last: tuple[int, float]) -> float:
    """By which a rate grows in each update, between two (step, rate)."""
    return math.exp(math.log(last[1] / first[1]) / (last[0] - first[0]))
