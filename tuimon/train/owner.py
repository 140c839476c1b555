"""What a watched optimizer owns: its parameters, their plan, and the hooks that are on it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from tuimon.train.device import CudaOperations
from tuimon.train.late import LateStats
from tuimon.train.stats import Plan

if TYPE_CHECKING:
    from tuimon.train.observer import Observer

NO_PLAN = Plan([], [], [], 0)


class Owner:
    """One optimizer and its parameters. Used by the training thread only.

    Attributes:
        reference: to the optimizer, weak.
        plan: its parameters as they are measured; replaced when they change.
        late: the device side, when the parameters lie on one.
    """

    def __init__(self, observer: Observer, optimizer: Optimizer) -> None:
        self.plan = NO_PLAN
        self.late: LateStats | None = None
        self._observer = observer
        # A plan holds parameters strongly: it must not outlive the optimizer that holds them too.
        forget = observer.boundary.within("the end of an optimizer", self._forget)
        self.reference = weakref.ref(optimizer, forget)
        self._handles: list[Any] = []
        self._lists: list[list[torch.Tensor]] = []  # of each group, as the plan was made from them
        self._covering: set[tuple[int, int, int]] = set()

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, or None when it is gone."""
        return self.reference()

    def _forget(self, _: Any) -> None:
        """The optimizer is gone."""
        self.plan = NO_PLAN
        self._lists = []
        self.late = None
        self._observer.inside.plan = None
        self._observer.snapshots.release()

    def owned(self) -> list[torch.Tensor]:
        """Its parameters in the order of its groups."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        return [param for group in optimizer.param_groups for param in group["params"]]

    def shares_with(self, other: Owner) -> bool:
        """Whether another optimizer updates some of the same parameters."""
        return not self.plan.ids.isdisjoint(other.plan.ids)

    def plan_again(self) -> None:
        """Follow a new layer table."""
        layers = self._observer.roster.layers
        optimizer = self.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        self._lists = [list(group["params"]) for group in groups]
        params = sorted(self.owned(), key=lambda param: layers.place_of[id(param)])
        places = [layers.place_of[id(param)] for param in params]
        names = [layers.table.names[place] for place in places]
        old = self.plan
        if params and old.table_size == layers.count and old.is_for(params, places):
            self.plan.names = names
            return
        if self.late is not None:
            self.late.abandon(self._observer.session)
        self.plan = Plan(params, names, places, layers.count)
        self._covering.clear()
        device = next((p.device for p in params if p.device.type == "cuda"), None)
        self.late = None
        if device is not None:
            self._observer.roster.on_device = True
            self.late = LateStats(self.plan, device, CudaOperations(device))

    @property
    def attached(self) -> bool:
        """Whether its hooks are on."""
        return bool(self._handles)

    def attach(self, handles: Iterable[Any]) -> None:
        """Keep the handles of its hooks."""
        self._handles += handles

    def close(self) -> None:
        """Take its hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def keep_up(self) -> None:
        """Follow the script where its optimizer got other parameters."""
        optimizer = self.reference()
        if optimizer is None:
            return
        groups, lists = optimizer.param_groups, self._lists
        if len(groups) == len(lists):
            for group, known in zip(groups, lists, strict=True):
                params = group["params"]
                if len(params) != len(known) or not all(map(is_, params, known)):
                    break
            else:
                return
        self._observer.roster.renew_layers()
