"""What tensors and modules of a re-run are called, and which module runs at the moment.

Holds references to what it names, so it lives no longer than the re-run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as _torch_module
from torch.utils._pytree import tree_leaves

from tuimon.model.autopsy import MAX_MODULES, ModuleState
from tuimon.model.text import plain
from tuimon.train.autopsy import looks
from tuimon.train.autopsy.memory import storage_key
from tuimon.train.layers import unwrap

Roots = Sequence[tuple[str, nn.Module]]

_COMPILED = "_orig_mod."  # what torch.compile puts into the names below a compiled module
_MAX_DEPTH = 4  # of containers that tensors are looked for in


class Named(NamedTuple):
    """A tensor and what it is: `kind` as in `PoisonedLeaf.kind`."""

    kind: str
    name: str
    tensor: torch.Tensor


def flat_tensors(output: Any) -> list[torch.Tensor]:
    """The tensors of a module's output in pytree order; also those of dataclasses."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif hasattr(type(leaf), "__dataclass_fields__") and not isinstance(leaf, type):
            for field in type(leaf).__dataclass_fields__:
                found += flat_tensors(getattr(leaf, "__dict__", {}).get(field))
    return found


class Names:
    """The names of one re-run.

    Attributes:
        path: of the innermost named module that runs; None outside of all.
    """

    def __init__(self, roots: Roots, also: Iterable[Named] = ()) -> None:
        self.parameters: dict[str, torch.Tensor] = {}
        self.modules: dict[str, nn.Module] = {}
        self._paths: dict[int, str] = {}
        self._named: dict[int, list[Named]] = {}
        self._running: list[str | None] = []
        self.entered: set[str] = set()
        self.bad_outputs: set[str] = set()
        for named in also:
            self._learn(named)
        for prefix, root in roots:
            self._learn_module(prefix, unwrap(root))

    def _learn_module(self, prefix: str, root: nn.Module) -> None:
        for name, module in root.named_modules():
            path = _clean(prefix + name).rstrip(".")
            self.modules.setdefault(path, module)
            self._paths.setdefault(id(module), path)
        for name, param in root.named_parameters():
            self.parameters[_clean(prefix + name)] = param
            self._learn(Named("parameter", _clean(prefix + name), param))
        for name, buffer in root.named_buffers():
            self._learn(Named("buffer", _clean(prefix + name), buffer))

    def _learn(self, named: Named) -> None:
        key = storage_key(named.tensor)
        if key is not None:
            self._named.setdefault(key, []).append(named)

    def of(self, tensor: torch.Tensor) -> Named | None:
        """What shares its memory with a tensor; the one that is bad, where there are several."""
        key = storage_key(tensor)
        candidates = self._named.get(key, ()) if key is not None else ()
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        same = [named for named in candidates if named.tensor is tensor]
        bad = same or [named for named in candidates if looks.is_bad(named.tensor)]
        return (bad or candidates)[0]

    def name_of(self, tensor: torch.Tensor) -> str:
        """The name of a tensor as an operand; "" where it has none."""
        named = self.of(tensor)
        return "" if named is None else named.name

    @property
    def path(self) -> str | None:
        for path in reversed(self._running):
            if path is not None:
                return path
        return None

    @contextmanager
    def following(self, on_output: Callable[[Any], bool]) -> Iterator[None]:
        """Follow which module runs; `on_output` says whether an output is bad."""

        def before(module: nn.Module, args: Any) -> None:
            path = self._paths.get(id(module))
            self._running.append(path)
            if path is not None:
                self.entered.add(path)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            path = self._running.pop() if self._running else None
            if path is not None and path not in self.bad_outputs and on_output(output):
                self.bad_outputs.add(path)

        hooks = [_torch_module.register_module_forward_pre_hook(before)]
        try:
            hooks.append(_torch_module.register_module_forward_hook(after, always_call=True))
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def states(self, bad_backward: set[str] | None) -> list[ModuleState]:
        """The module tree with what was bad when; call it inside `looks.apart`.

        Args:
            bad_backward: paths with a bad operation in the backward; None when none was run.
        """
        found: list[ModuleState] = []
        for path, module in self.modules.items():
            if len(found) == MAX_MODULES:
                break
            params = list(module.parameters(recurse=False))
            found.append(
                ModuleState(
                    plain(path, 200),
                    type(module).__name__,
                    path in self.bad_outputs if path in self.entered else None,
                    None if bad_backward is None else path in bad_backward,
                    any(map(looks.is_bad, params)) if params else None,
                )
            )
        return found


def _clean(name: str) -> str:
    return name.replace(_COMPILED, "").replace("_orig_mod", "")


def named_arguments(args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Named]:
    """The tensors of a call: "batch[0]", "batch[mask]", "batch[1][tokens]"."""
    for index, value in enumerate(args):
        yield from _named(f"batch[{index}]", value, 0)
    for key, value in kwargs.items():
        yield from _named(f"batch[{key}]", value, 0)


def _named(name: str, value: Any, depth: int) -> Iterator[Named]:
    if isinstance(value, torch.Tensor):
        yield Named("batch", name, value)
    elif depth < _MAX_DEPTH:
        if isinstance(value, list | tuple):
            for index, member in enumerate(value):
                yield from _named(f"{name}[{index}]", member, depth + 1)
        elif isinstance(value, dict):
            for key, member in value.items():
                yield from _named(f"{name}[{str(key)[:40]}]", member, depth + 1)
