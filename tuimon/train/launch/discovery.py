"""Finds the models and optimizers of an unmodified script, without importing torch first.

`Arrival` tells when the script has imported torch; `Discovery` then notes optimizers as they
are made and looks up the modules that own their parameters. It keeps weak references only and
leaves everything that is measured to the `found` callback.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    # Root modules and optimizers that still live, oldest first.
    Found = Callable[[list[Module], list[Optimizer]], None]

_Thing = TypeVar("_Thing")

# Hundreds of optimizers over bare tensors must not each walk all objects of the process.
MAX_FRUITLESS_SCANS = 8


class Arrival(MetaPathFinder):
    """Calls `arrived` once, right after a module has been imported in this process."""

    def __init__(self, module: str, arrived: Callable[[], None]) -> None:
        self._module = module
        self._arrived = arrived
        self._pid = os.getpid()
        self._looking = False

    def watch(self) -> None:
        """Start to look; `arrived` is called at once when the module is already there."""
        if self._module in sys.modules:
            self._arrived()
        else:
            sys.meta_path.insert(0, self)

    def done(self) -> None:
        """The module is imported: leave the import system."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._arrived()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find it, and have its loader report when it has run."""
        if fullname != self._module or self._looking or os.getpid() != self._pid:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ReportingLoader(spec.loader, self)
        return spec


class _ReportingLoader(Loader):
    """The module's own loader, which is back in place before its first line runs."""

    def __init__(self, original: Loader, arrival: Arrival) -> None:
        self._original = original
        self._arrival = arrival

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        module.__loader__ = self._original
        self._original.exec_module(module)
        self._arrival.done()


class Discovery:
    """Watches for optimizers and their models from the moment torch is there.

    Called in the user's threads. `guard` runs a callable and keeps its exceptions from the user.
    """

    def __init__(self, found: Found, guard: Callable[[Callable[[], None]], None]) -> None:
        self._found = found
        self._guard = guard
        self._pid = os.getpid()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._owned: dict[int, weakref.ref[Tensor]] = {}
        self._modules: list[weakref.ref[Module]] = []
        self._roots: list[weakref.ref[Module]] = []
        self._fruitless_scans = 0
        self.optimizers_seen = 0

    def arm(self) -> None:
        """Wrap `Optimizer.__init__` and listen for the first step of every optimizer."""
        from torch.optim import Optimizer
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        original = Optimizer.__init__

        @wraps(original)
        def noted(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._guard(lambda: self._note(optimizer))

        setattr(Optimizer, "__init__", noted)  # noqa: B010 - mypy refuses the assignment
        register_optimizer_step_pre_hook(self._before_step)

    def made(self, optimizer: Optimizer) -> None:
        """An optimizer was made before `arm`."""
        self._guard(lambda: self._note(optimizer))

    def unknown_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer that was never seen being made (unpickled, say) is about to step."""
        self._first_step(optimizer)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self._stepped:
            self._guard(lambda: self._first_step(optimizer))

    def _note(self, optimizer: Optimizer) -> None:
        if os.getpid() != self._pid:
            return
        if all(known() is not optimizer for known in self._optimizers):
            self.optimizers_seen += 1
            self._optimizers = [known for known in self._optimizers if known() is not None]
            self._optimizers.append(weakref.ref(optimizer))
        if self._fruitless_scans < MAX_FRUITLESS_SCANS and self._has_unowned(optimizer):
            self._scan()
            self._fruitless_scans += self._has_unowned(optimizer)
        self._add_roots([optimizer])
        self._report()

    def _first_step(self, optimizer: Optimizer) -> None:
        """Wrappers (DDP, torch.compile) and late modules exist by now: look again, once."""
        if os.getpid() != self._pid:
            return
        first_of_all = not self._stepped
        self._stepped.add(optimizer)
        if all(known() is not optimizer for known in self._optimizers):
            self._note(optimizer)
        if first_of_all:
            self._scan()
            self._roots = []
            self._add_roots(_alive(self._optimizers))
            self._report()

    def _add_roots(self, optimizers: list[Optimizer]) -> None:
        parameters = {id(tensor): None for made in optimizers for tensor in _parameters(made)}
        known = _alive(self._roots)
        new = roots_of(parameters, _alive(self._modules))
        known.extend(root for root in new if all(root is not other for other in known))
        self._roots = [weakref.ref(root) for root in known]

    def _report(self) -> None:
        self._found(_alive(self._roots), _alive(self._optimizers))

    def _has_unowned(self, optimizer: Optimizer) -> bool:
        return any(
            id(tensor) not in self._owned or self._owned[id(tensor)]() is not tensor
            for tensor in _parameters(optimizer)
        )

    def _scan(self) -> None:
        modules = all_modules()
        self._modules = [weakref.ref(module) for module in modules]
        self._owned = {
            id(tensor): weakref.ref(tensor)
            for module in modules
            for tensor in own_parameters(module)
        }


def all_modules() -> list[Module]:
    """Every `nn.Module` of the process; asks types only, so that no user code runs."""
    from torch.nn import Module

    return [thing for thing in gc.get_objects() if issubclass(type(thing), Module)]


def own_parameters(module: Module) -> list[Tensor]:
    """The parameters that a module holds itself."""
    table = vars(module).get("_parameters")
    if not isinstance(table, dict):
        return list(module.parameters(recurse=False)) if table is not None else []
    return [tensor for tensor in list(table.values()) if tensor is not None]


def children(module: Module) -> list[Module]:
    """The modules that a module holds itself."""
    table = vars(module).get("_modules")
    if not isinstance(table, dict):
        return list(module.children()) if table is not None else []
    return [child for child in list(table.values()) if child is not None]


def roots_of(parameters: Collection[int], modules: list[Module]) -> list[Module]:
    """The outermost modules that hold any of the parameters, as a script would call them.

    `parameters` are ids in the optimizers' order, which is also the order of the roots.
    Containers that cannot be called (`ModuleList`, `ModuleDict`) give way to their children.
    """
    parents: dict[int, list[Module]] = {}
    for module in modules:
        for child in children(module):
            parents.setdefault(id(child), []).append(module)
    owners = [m for m in modules if any(id(tensor) in parameters for tensor in own_parameters(m))]
    related: dict[int, Module] = {}
    waiting = list(owners)
    while waiting:
        module = waiting.pop()
        if id(module) not in related:
            related[id(module)] = module
            waiting.extend(parents.get(id(module), []))
    tops = [module for module in related.values() if id(module) not in parents]
    chosen: dict[int, Module] = {}
    for top in tops:
        for module in _callable_roots(top, related):
            chosen.setdefault(id(module), module)
    order = {tensor: position for position, tensor in enumerate(parameters)}
    return sorted(
        chosen.values(),
        key=lambda root: min((order.get(id(p), len(order)) for p in root.parameters()), default=0),
    )


def _callable_roots(top: Module, related: dict[int, Module]) -> Iterable[Module]:
    from torch.nn import Module

    waiting, seen = [top], set[int]()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if type(module).forward is Module.forward and "forward" not in vars(module):
            waiting.extend(child for child in children(module) if id(child) in related)
        else:
            yield module


def by_variable(roots: list[Module]) -> dict[str, Module]:
    """Several roots by the script's own variables; empty unless each has one at module level.

    Local variables are left alone: looking at a frame's would keep what they hold alive.
    """
    script = vars(sys.modules["__main__"])
    variables = {id(value): name for name, value in reversed(list(script.items()))}
    named = {variables.get(id(root), ""): root for root in roots}
    return {} if len(roots) < 2 or "" in named or len(named) < len(roots) else named


def _alive(references: Iterable[weakref.ref[_Thing]]) -> list[_Thing]:
    return [thing for reference in references if (thing := reference()) is not None]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]
