"""Listens to `torch.func.grad` and its kin where they are the training: no backward, no optimizer.

Only a loss that is not finite is told. What such a call differentiates, and whether it leads to an
update, is not known here: beside an optimizer it may be a part of something else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch._functorch import eager_transforms

from tuimon.model.records import MAX_INPUTS, Batch, Loss
from tuimon.train.leaves import leaves_of
from tuimon.train.modes import apart
from tuimon.train.observer import Observer
from tuimon.train.samples.summary import summarise
from tuimon.train.taps.batch import FIRST, FIRST_ELEMENTS
from tuimon.train.taps.loss import call_site
from tuimon.train.taps.patches import On, Patches

TAP = "torch.func"
MAX_TOLD = 16
_PARTS = 5  # function, argnums, has_aux, args, kwargs

_interpreters = torch._C._functorch.peek_interpreter_stack


class FunctionalTap:
    """Reads values in host memory that a transform outside of every other one hands back."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._look = observer.boundary.guard(TAP, self._on_value)
        self._told = self._calls = 0
        self._session: Any = None

    def install(self, patches: Patches) -> None:
        """Wrap the one function that `grad` and `grad_and_value` end in."""
        patches.install(eager_transforms, "grad_and_value_impl", self._wrap)

    def _wrap(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def grad_and_value(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if (
                on[0]
                and not torch.compiler.is_compiling()
                and not observer.off
                and get_ident() == observer.thread
                and not observer.backward_calls
                and not observer.roster.tracks
                and _interpreters() is None
            ):
                self._look(result, args)
            return result

        return grad_and_value

    def _on_value(self, result: Any, given: tuple[Any, ...]) -> None:
        session = self._observer.session
        if self._session is not session:
            self._session = session
            self._told = self._calls = 0
        call, self._calls = self._calls, self._calls + 1
        if not call:
            self._look_at_batch(given)
        value = result[1][0] if type(result[1]) is tuple else result[1]
        if type(value) is not torch.Tensor or not value.is_cpu or self._told >= MAX_TOLD:
            return
        if value.numel() != 1 or not value.dtype.is_floating_point:
            return
        loss = float(value.item())
        if math.isfinite(loss):
            return
        self._told += 1
        # Where there is no update to count, calls are.
        session.publish(Loss(step=call, value=loss, time_ns=time.time_ns(), site=call_site()))

    def _look_at_batch(self, given: tuple[Any, ...]) -> None:
        """What the first call was given beside what it differentiates by."""
        if len(given) != _PARTS:
            return
        _, argnums, _, args, kwargs = given
        chosen = argnums if isinstance(argnums, tuple) else (argnums,)
        rest = [each for at, each in enumerate(args) if at not in chosen]
        found, left_out = leaves_of(tuple(rest), kwargs, MAX_INPUTS)
        with apart():
            inputs = [summarise(name, tensor, FIRST_ELEMENTS) for name, tensor in found]
        if inputs:
            self._observer.session.publish(
                Batch(step=0, time_ns=time.time_ns(), why=FIRST, inputs=inputs, left_out=left_out)
            )
