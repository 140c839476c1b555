"""What a re-run must not meet or leave behind: gradients, hooks, warnings, compiled code."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch


@contextlib.contextmanager
def surroundings(params: Sequence[torch.Tensor]) -> Iterator[None]:
    """Gradients set aside, hooks after them off, warnings unseen, nothing compiled."""
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    show = warnings.showwarning
    kept = [(param, param.grad) for param in params]
    hooks = [(d, dict(d)) for p in params if (d := p._post_accumulate_grad_hooks)]
    warnings.showwarning = lambda *_, **__: None
    try:
        for param in params:
            param.grad = None
        for live, _ in hooks:
            live.clear()
        # Threads of the engine number their nodes apart: there the stack of the forward tells.
        on_device = any(param.device.type not in ("cpu", "meta") for param in params)
        torch.autograd.set_detect_anomaly(on_device, check_nan=False)
        with _eager():
            yield
    finally:
        torch.autograd.set_detect_anomaly(*anomaly)
        for live, before in hooks:
            live.update(before)
        for param, grad in kept:
            param.grad = grad
        warnings.showwarning = show


def _eager() -> AbstractContextManager[Any]:
    """Compiled functions run as they were written; the compiler is not loaded for that."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return contextlib.nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
