"""What a training saw itself, written down so that others can be measured against it."""

from __future__ import annotations

import gc
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass
class Truth:
    """One training as its own script knows it.

    Attributes:
        micro: losses of the batches of each update, as the script computed them.
        divided_by: what the framework divides each by before its backward; 1 for not at all.
        norms: total gradient norm of each update before clipping.
        clipped: the same after it.
        lrs: learning rate of each update.
        max_norm: bound of the clipping; None without.
        names: of the parameters, as the user's own model has them.
        skipped: indices of updates that a loss scaler left out.
        optimizers: how many make updates in turns.
        digest: of the weights, the optimizers' state and torch's random stream at the end.
    """

    name: str
    micro: list[list[float]] = field(default_factory=list)
    divided_by: int = 1
    norms: list[float] = field(default_factory=list)
    clipped: list[float] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)
    max_norm: float | None = None
    names: list[str] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    optimizers: int = 1
    digest: str = ""
    _open: list[float] = field(default_factory=list, repr=False)

    def loss(self, loss: torch.Tensor) -> None:
        """One batch has its loss."""
        self._open.append(float(loss.detach()))

    def update(self, optimizer: Any, norm: float, clipped: float) -> None:
        """An update is about to be made with gradients of this norm, before and after clipping."""
        self.micro.append(self._open)
        self._open = []
        self.norms.append(norm)
        self.clipped.append(clipped)
        self.lrs.append(float(optimizer.param_groups[0]["lr"]))

    def finish(self, model: nn.Module, *optimizers: Any) -> None:
        """The training is over."""
        digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
        for optimizer in (getattr(each, "optimizer", each) for each in optimizers):
            for group in optimizer.param_groups:
                for param in group["params"]:
                    for value in (param, *optimizer.state[param].values()):
                        if isinstance(value, torch.Tensor):
                            digest.update(value.detach().contiguous().view(-1).numpy().tobytes())
        for name, value in model.state_dict().items():
            digest.update(name.encode() + value.contiguous().view(-1).numpy().tobytes())
        self.digest = digest.hexdigest()


def norm_of(params: Iterable[torch.Tensor]) -> float:
    """The norm of the gradients as they are, computed without torch's clipping."""
    grads = [param.grad for param in params if param.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack([g.norm() for g in grads])))


def tell(cases: dict[str, Callable[[Truth, Callable[..., Any]], None]]) -> None:
    """Run the named cases one after the other and write what they saw.

    Command line: OUT.json "watch"|"" CASE…; with "watch" a case tells tuimon itself.
    """
    target, told, *wanted = sys.argv[1:]
    torch.set_num_threads(1)

    def watch(*things: Any, **more: Any) -> None:
        if told:
            import tuimon

            tuimon.watch(*things, **more)

    found = []
    for name in wanted:
        torch.manual_seed(0)
        truth = Truth(name)
        cases[name](truth, watch)
        found.append({k: v for k, v in asdict(truth).items() if not k.startswith("_")})
        gc.collect()
    Path(target).write_text(json.dumps(found))
