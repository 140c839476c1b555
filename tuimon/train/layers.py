"""Names the parameters: builds the `LayerTable` and finds a parameter's place in it.

Reads modules and optimizers, keeps weak references only.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tuimon.model.records import LayerTable
from tuimon.model.text import plain

# Wrappers that put a prefix before every name, and the attribute that holds the wrapped module.
_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
}


@dataclass(frozen=True)
class Layers:
    """One epoch of the layer table with the places of the live parameters."""

    table: LayerTable
    place_of: dict[int, int]  # id of a live parameter -> index in the table

    @property
    def count(self) -> int:
        """Number of parameters in the table."""
        return len(self.table.names)


NO_LAYERS = Layers(LayerTable(epoch=0, names=[]), {})


def unwrap(module: nn.Module) -> nn.Module:
    """The user's own module inside compile and data-parallel wrappers."""
    while (attribute := _WRAPPERS.get(type(module).__name__)) is not None:
        inner = getattr(module, attribute, None)
        if not isinstance(inner, nn.Module):
            break
        module = inner
    return module


def prefixes(models: Sequence[nn.Module], names: Mapping[int, str] | None = None) -> list[str]:
    """What to put before the names of each model: nothing for one, its name for several.

    Args:
        models: distinct root modules.
        names: id of a root -> the name it goes by; its class stands in for a missing one.
    """
    if len(models) == 1:
        return [""]
    wanted = [(names or {}).get(id(model)) or type(unwrap(model)).__name__ for model in models]
    counts = Counter(wanted)
    seen: Counter[str] = Counter()
    result = []
    for name in wanted:
        result.append(f"{name}." if counts[name] == 1 else f"{name}#{seen[name]}.")
        seen[name] += 1
    return result


def distinct(models: Iterable[nn.Module]) -> list[nn.Module]:
    """Each module once, also where it was given both wrapped and bare."""
    found: dict[int, nn.Module] = {}
    for model in models:
        found.setdefault(id(unwrap(model)), model)
    return list(found.values())


def build_layers(
    models: Iterable[nn.Module],
    owned: Sequence[tuple[int, Sequence[torch.Tensor]]],
    epoch: int,
    names: Mapping[int, str] | None = None,
) -> Layers:
    """Table of all parameters of `models`, then those that only an optimizer knows.

    Args:
        models: root modules in the order in which they were given.
        owned: (optimizer index, its parameters) of each optimizer.
        epoch: number of the table.
        names: id of a root -> the name it goes by.
    """
    owner = {id(param): index for index, params in owned for param in params}
    rows: list[tuple[str, torch.Tensor]] = []
    aliases: dict[str, str] = {}
    name_of: dict[int, str] = {}
    roots = distinct(models)
    param: torch.Tensor
    for prefix, model in zip(prefixes(roots, names), roots, strict=True):
        for name, param in unwrap(model).named_parameters(remove_duplicate=False):
            full = plain(prefix + name)
            if id(param) in name_of:
                aliases[full] = name_of[id(param)]
                continue
            name_of[id(param)] = full
            rows.append((full, param))
    for index, params in owned:
        for position, param in enumerate(params):
            if id(param) not in name_of:
                name_of[id(param)] = f"optimizer{index}.{position}"
                rows.append((name_of[id(param)], param))
    table = LayerTable(
        epoch=epoch,
        names=[name for name, _ in rows],
        shapes=[list(param.shape) for _, param in rows],
        dtypes=[str(param.dtype).removeprefix("torch.") for _, param in rows],
        requires_grad=[param.requires_grad for _, param in rows],
        optimizer_index=[owner.get(id(param), -1) for _, param in rows],
        aliases=aliases,
    )
    return Layers(table, {id(param): place for place, (_, param) in enumerate(rows)})


def alive(references: Iterable[weakref.ref[nn.Module]]) -> list[nn.Module]:
    """The modules that still exist."""
    return [model for reference in references if (model := reference()) is not None]
