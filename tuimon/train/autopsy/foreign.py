"""Which objects are not the script's own: of a library, of the loop round the modules, or in C."""

from __future__ import annotations

import functools
import io
import itertools
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

SCALARS = frozenset(
    (int, float, bool, str, bytes, complex, type(None), range, slice, type(Ellipsis), torch.dtype,
     torch.device, types.BuiltinFunctionType, types.GetSetDescriptorType, types.ModuleType,
     types.MethodDescriptorType, types.WrapperDescriptorType, types.MemberDescriptorType)
)  # fmt: skip
# Containers without a state beside what they contain.
BARE = frozenset((dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict))

# Their instances belong to the loop around the modules, or have no state that Python can set.
_LEFT_ALONE = (
    "torch.optim", "torch.utils.data", "torch.distributed", "torch._dynamo", "tuimon",
    # What they do is refused where it is done.
    "concurrent.futures", "multiprocessing", "queue", "socket", "subprocess", "asyncio",
)  # fmt: skip
_OF_THE_LOOP = (torch.optim.Optimizer, torch.utils.data.Dataset, torch.utils.data.DataLoader)
_FOREIGN_ROOTS = frozenset(
    ("builtins", "numpy", "threading", "_thread", "io", "_io", "logging", "weakref", "_weakref")
)
_GO_BACK = (io.IOBase, itertools.count)  # iterators all the same
_CACHE = type(functools.lru_cache(len))
# What is taken out of these, or put in, cannot be taken back.
_PASSING_ON = frozenset(("_queue", "sqlite3", "multiprocessing.synchronize"))


def is_foreign(kind: type) -> bool:
    """Whether objects of this class are left alone."""
    if issubclass(kind, nn.Module | torch.optim.lr_scheduler.LRScheduler):
        return False
    if kind.__module__.partition(".")[0] in _FOREIGN_ROOTS:
        return True
    return issubclass(kind, types.ModuleType | type) or is_wrapper(kind)


def is_wrapper(kind: type) -> bool:
    """Whether a class is from those parts of torch that stand round the script's modules."""
    name = kind.__module__
    return any(name == each or name.startswith(each + ".") for each in _LEFT_ALONE)


def is_of_the_loop(kind: type) -> bool:
    """Whether objects of this class may be large and are the business of whoever trains."""
    return issubclass(kind, _OF_THE_LOOP)


def cannot_go_back(kind: type) -> str:
    """Why a second run would leave a trace in such an object whatever is done; "" else."""
    if issubclass(kind, torch.utils.data.dataloader._BaseDataLoaderIter):
        return "a DataLoader that is being read would be advanced by a re-run"
    if kind.__module__ in _PASSING_ON:
        return f"a {kind.__name__} is shared with whoever is at its other end"
    if issubclass(kind, Iterator) and _is_opaque(kind) and not issubclass(kind, _GO_BACK):
        return f"a {kind.__name__} would be advanced by a re-run"
    if issubclass(kind, torch.jit.ScriptModule):
        return "its modules are scripted, which no second run can look into"
    return ""


def _is_opaque(kind: type) -> bool:
    """Whether instances keep their state where Python does not see it."""
    return not any("__dict__" in vars(base) or "__slots__" in vars(base) for base in kind.__mro__)


def slots(kind: type) -> list[Any]:
    """Descriptors of what instances hold outside of their `__dict__`."""
    return [
        value
        for base in kind.__mro__  # members of types in C cannot be set, and need not be
        for value in (vars(base).values() if "__slots__" in vars(base) else ())
        if isinstance(value, types.MemberDescriptorType)
    ]


def is_installed(names: Mapping[str, Any]) -> bool:
    """Whether a module with these globals came with an installation, not with the script."""
    name = str(names.get("__name__", ""))
    if name.partition(".")[0] == "tuimon":
        return True
    file = names.get("__file__")
    if not isinstance(file, str):
        return name != "__main__"
    return "site-packages" in file or "dist-packages" in file or file.startswith(sys.base_prefix)


def comes_installed(kind: type) -> bool:
    """The same of the module that a class is from."""
    source = sys.modules.get(kind.__module__)
    return source is None or is_installed(vars(source))


def is_drawn_by_nobody(value: Any) -> bool:
    """Whether a random stream has no state: it asks the operating system."""
    return isinstance(value, random.SystemRandom)


def is_cache(kind: type) -> bool:
    """Whether it is what `functools.lru_cache` makes."""
    return kind is _CACHE
