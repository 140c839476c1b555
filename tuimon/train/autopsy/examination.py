"""What a re-run found, in the terms of `model.autopsy`, with what is needed to compare it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tuimon.model.autopsy import UNKNOWN, ModuleState, OpSite, PoisonedLeaf
from tuimon.train.autopsy.slicing import Verdict


@dataclass
class Examination:
    """Fields of the same name are those of `model.autopsy.Autopsy`.

    Attributes:
        engine: "M", "R", or "" in the optimizer's phase.
        reached: "forward", "backward" or "optimizer": how far the re-run came.
        loss_code: the modules are innocent: their outputs are finite, while the loss, or the
            gradient that came back from it, was not.
        bad_outputs, bad_grads: names of what was not finite in the re-run.
        outputs: tensors of the re-run's output, detached. They hold memory.
        returned: the output itself, without its graph.
        grads: of the re-run, by name of the parameter. They hold memory.
        loss: of engine R.
        stopped: by its limits.
        ops: operators that ran.
    """

    engine: str
    verdict: str = UNKNOWN
    first: OpSite | None = None
    leaves: list[PoisonedLeaf] = field(default_factory=list)
    path: list[OpSite] = field(default_factory=list)
    modules: list[ModuleState] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    upstream: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reached: str = ""
    loss_code: bool = False
    bad_outputs: list[str] = field(default_factory=list)
    bad_grads: list[str] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    returned: Any = None
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: float | None = None
    stopped: bool = False
    ops: int = 0
    duration_s: float = 0.0

    def adopt(self, verdict: Verdict) -> None:
        """Take over what the slice says."""
        self.verdict = verdict.verdict
        self.first = verdict.first
        self.leaves = verdict.leaves
        self.path = verdict.path
        self.constants = verdict.constants
