"""Listens to what ends: the process group, whose store is gone then, and uneven inputs (`Join`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tuimon.train.taps.patches import On, Patches

if TYPE_CHECKING:
    from tuimon.train.observer import Observer


class EndingTap:
    """Lets the ranks take their leave of each other while their store is still there.

    A model does not say itself when a `Join` is over.
    """

    def __init__(self, observer: Observer) -> None:
        self._close = observer.boundary.guard("process group", self._on_end)
        self._end_join = observer.boundary.guard("uneven inputs", self._on_end_of_join)
        self._observer = observer

    def install(self, patches: Patches) -> None:
        """Wrap the function under both names that scripts know it by."""
        for name in ("torch.distributed", "torch.distributed.distributed_c10d"):
            if (module := sys.modules.get(name)) is not None:
                patches.install(module, "destroy_process_group", self._wrap)

        join = getattr(sys.modules.get("torch.distributed.algorithms.join"), "Join", None)
        if join is not None:
            patches.install(join, "__exit__", self._wrap_join)

    def _wrap(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        def destroy_process_group(group: Any = None) -> Any:
            if on[0]:
                self._close(group)
            return original(group)

        return destroy_process_group

    def _wrap_join(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        def leave(join: Any, *error: Any) -> Any:
            try:
                return original(join, *error)
            finally:
                if on[0]:
                    self._end_join(join)

        return leave

    def _on_end_of_join(self, join: Any) -> None:
        self._observer.gate.together.end_join(getattr(join, "_joinables", ()))

    def _on_end(self, group: Any) -> None:
        world = getattr(sys.modules.get("torch.distributed"), "group", None)
        if group is None or group is getattr(world, "WORLD", None):
            self._observer.gate.together.close("its process group has ended")
