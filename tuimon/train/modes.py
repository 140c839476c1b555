"""Keeps what tuimon computes out of the sight of the user's function and dispatch modes.

A mode that counts, replaces or forbids operations speaks of the training, and must find there what
it would find without tuimon.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# How many modes are active: one call into C each, so that asking costs next to nothing.
function_modes = torch._C._len_torch_function_stack
dispatch_modes = torch._C._len_torch_dispatch_stack
_pop = torch._C._pop_torch_dispatch_stack
_push = torch._C._push_on_torch_dispatch_stack


@contextmanager
def unseen() -> Iterator[None]:
    """No mode that is active outside sees what is done inside."""
    taken = []
    with torch._C.DisableTorchFunction():
        try:
            while dispatch_modes():
                taken.append(_pop(None))
            yield
        finally:
            for mode in reversed(taken):
                _push(mode)


@contextmanager
def apart() -> Iterator[None]:
    """No graph, and no function mode or subclass of the user's sees what is done inside."""
    with torch._C.DisableTorchFunction():
        # A function mode sees even the switch of the gradient.
        was = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            yield
        finally:
            torch._C._set_grad_enabled(was)
