"""Looks for non-finite values in what an update leaves behind: weights, buffers, optimizer state.

Reads only. Tensors on a device are left out, because reading them here would make it wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from tuimon.model.records import MAX_BAD, BadTensor
from tuimon.train.layers import unwrap
from tuimon.train.stats import FOREACH_DTYPES, count_bad, flags_of, measurable

FIRST_STEPS = 10  # every one of them is checked: bad starts show within the first updates
EVERY_STEPS = 50
MAX_INCIDENTS = 8  # checks and exact counts on suspicion, per optimizer; then the cadence alone

HEALTHY_STREAK = 200  # updates without a suspicion after which incidents are counted anew
MAX_BAD_WEIGHTS = MAX_BAD // 2  # so that neither gradients nor weights crowd out the other

Named = tuple[str, str, torch.Tensor]  # what, name, tensor


class Weights:
    """What is known about the state around one update, and how often suspicion may still look.

    Attributes:
        bad: exact counts of the newest look, at most `MAX_BAD_WEIGHTS`.
        bad_total: how many tensors were bad then.
        bad_before: the same of a look before the update; None without one.
        checked: where the state was looked at: "", "before", "after" or "both".
        affordable: a suspicion still earns exact counts and a look of its own.
    """

    def __init__(self) -> None:
        self.bad: list[BadTensor] = []
        self.bad_total = 0
        self.bad_before: int | None = None
        self.checked = ""
        self.affordable = True
        self._incidents = 0
        self._healthy = 0

    def begin(self) -> None:
        """A new update."""
        if self.checked:
            self.bad, self.bad_total, self.bad_before = [], 0, None
            self.checked = ""

    def conclude(self, suspicious: bool) -> None:
        """Count the update that ends now."""
        if suspicious:
            self._incidents += 1
            self._healthy = 0
            self.affordable = self._incidents < MAX_INCIDENTS
            return
        self._healthy += 1
        if self._healthy == HEALTHY_STREAK:
            self._incidents = 0
            self.affordable = True

    def look(self, side: str, tensors: Iterator[Named]) -> None:
        """Look at everything; the newest finding counts."""
        bad, total, looked = find_bad(tensors)
        if not looked:
            return
        self.checked = "both" if self.checked else side
        self.bad, self.bad_total = bad[:MAX_BAD_WEIGHTS], total
        if side == "before":
            self.bad_before = total


def is_due(step: int) -> bool:
    """Whether the state is looked at after update `step` without any suspicion."""
    return step < FIRST_STEPS or step % EVERY_STEPS == 0


def state_tensors(
    models: Sequence[tuple[str, nn.Module]],
    optimizer: torch.optim.Optimizer,
    names: Mapping[int, str],
) -> Iterator[Named]:
    """Every tensor that lives on from step to step, with its name.

    Args:
        models: (prefix of its names, root module).
        optimizer: whose state is listed.
        names: id of a parameter -> its name.
    """
    seen: set[int] = set()
    for group in optimizer.param_groups:
        for param in group["params"]:
            seen.add(id(param))
            yield "parameter", names.get(id(param), "?"), param
    for prefix, model in models:
        root = unwrap(model)
        for name, param in root.named_parameters():
            if id(param) not in seen:
                yield "parameter", prefix + name, param
        for name, buffer in root.named_buffers():
            yield "buffer", prefix + name, buffer
    for owner, entries in optimizer.state.items():
        if isinstance(entries, dict):
            name = names.get(id(owner), "?")
            for key, value in entries.items():
                if isinstance(value, torch.Tensor):
                    yield "optimizer-state", f"{name}.{key}", value


def find_bad(tensors: Iterator[Named]) -> tuple[list[BadTensor], int, bool]:
    """(exact counts of the first bad tensors, how many are bad, whether any was looked at)."""
    groups: dict[torch.dtype, list[tuple[str, str, torch.Tensor]]] = {}
    for what, name, tensor in tensors:
        if tensor.device.type == "cpu" and (values := measurable(tensor)) is not None:
            groups.setdefault(values.dtype, []).append((what, name, values))
    bad: list[BadTensor] = []
    total = 0
    for dtype, members in groups.items():
        for index in _suspects([values for _, _, values in members], dtype):
            what, name, values = members[index]
            if flags_of(values):
                total += 1
                if len(bad) < MAX_BAD:
                    bad.append(count_bad(what, name, values))
    return bad, total, bool(groups)


def _suspects(tensors: list[torch.Tensor], dtype: torch.dtype) -> list[int]:
    """Indices whose L2 norm is not finite."""
    assert dtype in FOREACH_DTYPES
    wanted = torch.float64 if dtype is torch.float64 else torch.float32
    with torch.no_grad():
        norms = torch.stack(list(torch._foreach_norm(tensors, 2.0, dtype=wanted))).numpy()
    if math.isfinite(float(norms.sum(dtype=np.float64))):
        return []
    return [int(index) for index in np.flatnonzero(~np.isfinite(norms))]
