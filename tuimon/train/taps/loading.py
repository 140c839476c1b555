"""Listens to state that is put into live objects or read from files: what a run goes on with.

Counts keys and kinds only. The script's own values are looked at where they lie in plain dicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer, lr_scheduler

from tuimon.model.loop import FILE, MODULE, OPTIMIZER, SCALER, SCHEDULER, StateLoaded
from tuimon.train.observer import Observer
from tuimon.train.stats import host_number
from tuimon.train.taps.patches import On, Patches

TAP = "loaded state"
MAX_ENTRIES = 64  # of a file's outermost dict


class LoadTap:
    """Wraps `load_state_dict` of modules, optimizers, schedulers and scalers, and `torch.load`."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._depth = 0
        guard = observer.boundary.guard
        self._module = guard(TAP, self._on_module)
        self._optimizer = guard(TAP, self._on_optimizer)
        self._other = guard(TAP, self._on_other)
        self._file = guard(TAP, self._on_file)

    def install(self, patches: Patches) -> None:
        """Wrap what a script calls to go on where it was."""
        patches.install(nn.Module, "load_state_dict", self._wrapper(self._module))
        patches.install(Optimizer, "load_state_dict", self._wrapper(self._optimizer))
        for kind in _schedulers():
            patches.install(kind, "load_state_dict", self._wrapper(self._other, SCHEDULER))
        for kind in (GradScaler, torch.cuda.amp.GradScaler):
            patches.install(kind, "load_state_dict", self._wrapper(self._other, SCALER))
        patches.install(torch.serialization, "load", self._wrapper(self._file))
        patches.install(torch, "load", self._wrapper(self._file))

    def _wrapper(self, note: Callable[..., Any], *kind: str) -> Callable[..., Any]:
        observer = self._observer

        def wrap(original: Callable[..., Any], on: On) -> Callable[..., Any]:
            def load(*args: Any, **kwargs: Any) -> Any:
                if self._depth or not on[0] or observer.off or torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                self._depth += 1
                try:
                    result = original(*args, **kwargs)
                finally:
                    self._depth -= 1
                note(*kind, args, kwargs, result)
                return result

            return load

        return wrap

    def _on_module(self, args: Any, kwargs: Any, result: Any) -> None:
        module, state = args[0], args[1] if len(args) > 1 else kwargs.get("state_dict")
        if not isinstance(module, nn.Module) or not isinstance(state, dict):
            return
        given = len(state)
        missing = len(getattr(result, "missing_keys", ()))
        unexpected = len(getattr(result, "unexpected_keys", ()))
        self._tell(
            StateLoaded(
                step=self._observer.roster.next_step(),
                what=MODULE,
                matched=max(0, given - unexpected),
                missing=missing,
                unexpected=unexpected,
                kind=type(module).__name__,
            ),
            module,
        )

    def _on_optimizer(self, args: Any, kwargs: Any, result: Any) -> None:
        optimizer = args[0]
        if not isinstance(optimizer, Optimizer):
            return
        track = self._observer.roster.tracks.get(id(optimizer))
        groups = optimizer.param_groups
        self._tell(
            StateLoaded(
                step=self._observer.roster.next_step(),
                what=OPTIMIZER,
                optimizer=track.index if track is not None else None,
                rate=host_number(groups[0].get("lr")) if groups else None,
                entries=len(optimizer.state),
                kind=type(optimizer).__name__,
            ),
            optimizer,
        )

    def _on_other(self, what: str, args: Any, kwargs: Any, result: Any) -> None:
        step = self._observer.roster.next_step()
        self._tell(StateLoaded(step=step, what=what, kind=type(args[0]).__name__))

    def _on_file(self, args: Any, kwargs: Any, result: Any) -> None:
        if type(result) is dict and (holds := kinds_in(result)):
            step = self._observer.roster.next_step()
            self._tell(StateLoaded(step=step, what=FILE, holds=holds))

    def _tell(self, record: StateLoaded, target: Any = None) -> None:
        self._observer.loop.loaded(record, target)


def kinds_in(saved: dict[Any, Any]) -> list[str]:
    """Which kinds of state lie in what a file holds."""
    found = set()
    for value in [saved, *list(saved.values())[:MAX_ENTRIES]]:
        if not isinstance(value, dict):
            continue
        if "param_groups" in value and "state" in value:
            found.add(OPTIMIZER)
        elif "growth_factor" in value or "_growth_tracker" in value:
            found.add(SCALER)
        elif "last_epoch" in value and "base_lrs" in value:
            found.add(SCHEDULER)
        elif any(isinstance(each, torch.Tensor) for each in list(value.values())[:MAX_ENTRIES]):
            found.add(MODULE)
    return sorted(found)


def _schedulers() -> list[type]:
    """The classes of PyTorch's schedulers that load their state themselves."""
    kinds = [each for each in vars(lr_scheduler).values() if isinstance(each, type)]
    return [kind for kind in dict.fromkeys(kinds) if "load_state_dict" in vars(kind)]
