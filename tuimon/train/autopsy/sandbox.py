"""The one place where user code is run a second time: everything round it is as it was, after it.

Belongs to the training thread; the observer must be off, so that no tap of ours takes part.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from tuimon.train.autopsy import streams
from tuimon.train.autopsy.alone import alone, is_distributed
from tuimon.train.autopsy.nowhere import Nowhere
from tuimon.train.autopsy.outside import ReachesOut, out_of_reach
from tuimon.train.autopsy.restore import CannotKeep, Kept
from tuimon.train.signals import deferred

ROOM = 4.0  # free memory that a re-run must find, in multiples of parameters and buffers


@contextmanager
def sandbox(
    roots: list[nn.Module],
    *,
    random_states: dict[str, Any] | None = None,
    registered: Iterable[tuple[Any, Any]] = (),
    also: Iterable[Any] = (),
    makes_updates: bool = False,
) -> Iterator[Kept]:
    """Run user code inside; afterwards nothing tells that it has run.

    Args:
        roots: modules that will be called; their parameters and buffers are stand-ins inside.
        random_states: process-wide streams as they are to begin with, by the names of `streams`.
        registered: (generator of the user's, its state to begin with or None).
        also: more objects of the user's that are run or handed over, such as a function.
        makes_updates: optimizers may step, because they are copies.

    Raises:
        CannotKeep: it could not be put back, or there is no room; nothing was run.
    """
    _refuse(roots)
    listed = list(registered)
    with deferred():  # before anything is noted: what a handler does stays
        kept = Kept(roots, [*also, *(generator for generator, _ in listed)])
        _find_room(kept)
        before = streams.read_all(kept.generators)
        updates = contextlib.nullcontext() if makes_updates else _no_updates()
        with _quiet(), _flags(), updates, out_of_reach():
            try:
                kept.put_stand_ins()
                for name, state in (random_states or {}).items():
                    streams.write(name, state)
                for generator, state in listed:
                    if state is not None:
                        streams.set_state(generator, state)
                yield kept
            finally:
                try:
                    _put_back(kept, before)
                except BaseException:  # an interruption must not leave half of it behind
                    _put_back(kept, before)
                    raise


def _put_back(kept: Kept, before: streams.Streams) -> None:
    kept.put_back()
    before.put_back()


def _refuse(roots: list[nn.Module]) -> None:
    """Modules that may not be run alone, or not a second time."""
    for root in roots:
        for module in root.modules():
            name = type(module).__name__
            if isinstance(module, torch.jit.ScriptModule):
                raise CannotKeep("its modules are scripted, which no second run can look into")
            if "FSDP" in name or name == "FullyShardedDataParallel":
                raise CannotKeep("its parameters are spread over ranks (FSDP)")
            if isinstance(module, nn.SyncBatchNorm) and is_distributed():
                raise CannotKeep("SyncBatchNorm would wait for the other ranks")
            if isinstance(module, nn.parallel.DistributedDataParallel):
                raise CannotKeep("a part of it is replicated (DDP) and would wait for other ranks")


def _find_room(kept: Kept) -> None:
    free_bytes = free_memory_bytes()
    if free_bytes is not None and free_bytes < ROOM * kept.own_bytes:
        raise CannotKeep("there is too little free memory for a second set of parameters")


def free_memory_bytes() -> int | None:
    """Host memory that could be had now; None where that cannot be told."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int((group / "memory.current").read_text()))
    return min(found, default=None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is printed. The filters stay: changing them makes old warnings appear again."""
    shown, thread = warnings.showwarning, get_ident()

    def show(*args: Any, **kwargs: Any) -> None:
        if get_ident() != thread:
            shown(*args, **kwargs)

    out: Any = Nowhere(sys.stdout)
    err: Any = Nowhere(sys.stderr)
    warnings.showwarning = show
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    finally:
        warnings.showwarning = shown


@contextmanager
def _no_updates() -> Iterator[None]:
    """An optimizer that is stepped inside of a forward would update the real parameters."""
    thread = get_ident()

    def refuse(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if get_ident() == thread:
            raise ReachesOut("an update would be made, which belongs to the training")

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _flags() -> Iterator[None]:
    """Gradients on, modes of the user's off, and every switch as before in the end."""
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    default_dtype = torch.get_default_dtype()
    context = contextvars.copy_context()
    packing = _take_packing_hooks()
    try:
        with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad(), alone():
            yield
    finally:
        for pack, unpack in reversed(packing):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
        for variable, value in context.items():
            if variable.get(value) is not value:
                variable.set(value)
        torch.set_anomaly_enabled(anomaly, check_nan)
        if torch.get_default_dtype() is not default_dtype:
            torch.set_default_dtype(default_dtype)


def _take_packing_hooks() -> list[tuple[Any, Any]]:
    """Hooks of the script's on what graphs save: they are not met by graphs of a second run."""
    newest = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    found: list[tuple[Any, Any]] = []
    while newest is not None and (pair := newest(True)) is not None:
        found.append(pair)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    return found
