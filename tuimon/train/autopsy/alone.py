"""Keeps a second run from waiting for other ranks, which run nothing again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tuimon.train.autopsy.outside import ReachesOut
from tuimon.train.taps.compiler import leave_alone

_OF_RANKS = ("c10d", "_c10d_functional", "c10d_functional")  # namespaces of collectives


class _Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses collectives; everything else passes."""

    def _dispatch(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace in _OF_RANKS:
            raise ReachesOut("other ranks would be waited for, which run nothing again")
        return func(*args, **(kwargs or {}))


# Set afterwards, as that of the tracer is: torch's own wrapper loads the compiler.
_Alone.__torch_dispatch__ = _Alone._dispatch  # type: ignore[method-assign,assignment]
leave_alone(_Alone._dispatch.__code__, callees=True)


def is_distributed() -> bool:
    """Whether this process is one of a group."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def alone() -> contextlib.AbstractContextManager[Any]:
    """Inside, no collective is begun where there are other ranks."""
    if not is_distributed() or torch.distributed.get_world_size() < 2:
        return contextlib.nullcontext()
    make: Callable[[], contextlib.AbstractContextManager[Any]] = _Alone
    return make()
