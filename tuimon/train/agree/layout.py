"""How the watched models lie on the ranks, and which commands that rules out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tuimon.model import commands

_UNEVEN = "the ranks have uneven inputs (Join): they do not count the same updates"


class Layout:
    """What is known of the models when the first update comes.

    Read by the agreeing thread, which looks at plain attributes only.

    Attributes:
        is_replicated: every rank gets the same gradients (DDP).
        is_sharded: a rank sees a part of each parameter only (FSDP and other distributed tensors).
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        modules = [module for root in roots for module in root.modules()]
        kind = nn.parallel.DistributedDataParallel
        self._replicas: list[Any] = [each for each in modules if isinstance(each, kind)]
        self._over: list[Any] = []  # what is known of a `Join` that the script has left
        self.is_replicated = bool(self._replicas)
        self.is_sharded = any(map(_is_sharded, modules))
        self._synchronises = any(isinstance(each, nn.SyncBatchNorm) for each in modules)

    @property
    def uneven(self) -> str:
        """Why ranks cannot wait for each other now; "" when they can."""
        return _UNEVEN if any(map(self._is_joining, self._replicas)) else ""

    def end_join(self, replicas: Iterable[Any]) -> None:
        """The script has left the `Join` of these, which they go on to speak of."""
        self._over = [getattr(each, "_join_config", None) for each in replicas]

    def objection(self, command: commands.Command) -> str:
        """Why ranks that are laid out like this cannot carry out a command; "" when they can."""
        if uneven := self.uneven:
            return uneven
        if isinstance(command, commands.RunAutopsy):
            if self.is_sharded:
                return "the parameters are spread over ranks: no rank can run the step alone"
            if self._synchronises:
                return "SyncBatchNorm would wait for the other ranks: no rank can run it alone"
        if self.is_sharded and isinstance(command, commands.SaveCheckpoint):
            return "the parameters are sharded; save by the script's own means"
        if self.is_sharded and isinstance(command, commands.RollBack):
            return "the parameters are sharded: no snapshots are taken"
        return ""

    def _is_joining(self, replica: Any) -> bool:
        """Whether the script trains it within `Join`."""
        config = getattr(replica, "_join_config", None)
        is_over = any(config is each for each in self._over)
        return bool(getattr(config, "enable", False)) and not is_over


def _is_sharded(module: nn.Module) -> bool:
    name = type(module).__name__
    if name == "FullyShardedDataParallel" or name.startswith("FSDP"):
        return True
    return any(
        type(each) not in (torch.Tensor, nn.Parameter) and hasattr(each, "to_local")
        for each in module._parameters.values()
    )
