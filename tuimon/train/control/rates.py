"""Learning rates that a viewer asked for: put on for one update, taken off when it is over.

In between a scheduler and the script see their own values, so that both go on as without them.
Used by the training thread only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from tuimon.train.stats import host_number

Group = dict[str, Any]


@dataclass(slots=True)
class _PutOn:
    """One group whose rate is not the script's for now.

    Attributes:
        own: the script's object; a tensor keeps its identity, and `kept` its value.
        ours: what stands there now.
    """

    group: Group
    own: Any
    ours: Any
    kept: torch.Tensor | None = None


class Rates:
    """What was asked for, by optimizer and group.

    Attributes:
        factor: of all rates that are not fixed.
        fixed: (index of the optimizer, index of the group) -> learning rate.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self.fixed: dict[tuple[int, int], float] = {}

    @property
    def active(self) -> bool:
        """Whether any rate is not the script's own."""
        return self.factor != 1.0 or bool(self.fixed)

    def scale(self, factor: float) -> None:
        """Multiply every rate from now on, those that are fixed as well."""
        self.factor *= factor
        self.fixed = {place: value * factor for place, value in self.fixed.items()}

    def fix(self, optimizer: int, groups: Sequence[int], value: float) -> None:
        """Let these groups have this rate, whatever a scheduler says."""
        self.fixed |= {(optimizer, group): value for group in groups}

    def release(self) -> None:
        """The script's own rates from now on."""
        self.factor = 1.0
        self.fixed = {}

    def effective(self, index: int, group: int, own: float | None) -> float | None:
        """The rate that a group's next update has; None where the script's is not known here."""
        fixed = self.fixed.get((index, group))
        if fixed is not None:
            return fixed
        return None if own is None else own * self.factor

    def of(self, index: int, optimizer: Optimizer) -> list[float | None]:
        """The rates that the groups' next update has."""
        return [self.effective(index, i, own) for i, own in enumerate(in_force(optimizer))]

    def put_on(self, index: int, optimizer: Optimizer) -> list[_PutOn]:
        """Give the groups of an optimizer their rates for one update."""
        changed = []
        for place, group in enumerate(optimizer.param_groups):
            own = group.get("lr")
            fixed = self.fixed.get((index, place))
            if isinstance(own, torch.Tensor):
                # In place: a compiled or captured step holds this very tensor.
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    kept = own.detach().clone()
                    own.mul_(self.factor) if fixed is None else own.fill_(fixed)
                changed.append(_PutOn(group, own, own, kept))
            elif isinstance(own, int | float):
                group["lr"] = own * self.factor if fixed is None else fixed
                changed.append(_PutOn(group, own, group["lr"]))
        return changed


def take_off(changed: Sequence[_PutOn]) -> None:
    """Give the groups back what they had; what the script has set meanwhile stays."""
    for each in changed:
        if each.group.get("lr") is not each.ours:
            continue
        if each.kept is not None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                each.own.copy_(each.kept)
        else:
            each.group["lr"] = each.own


def in_force(optimizer: Optimizer) -> list[float | None]:
    """The rates as they stand, by group; None where reading one would make a device wait."""
    return [
        lr if type(lr := group.get("lr")) is float else host_number(lr)
        for group in optimizer.param_groups
    ]


def in_words(rates: Sequence[float | None]) -> str:
    """The rates of an optimizer for the ledger; one number where all are the same."""
    if not rates:
        return "none"
    shown = ["unknown" if rate is None or math.isnan(rate) else f"{rate:g}" for rate in rates]
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)
