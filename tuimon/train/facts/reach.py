"""Which parameters a loss reaches, and which of them no optimizer holds.

Walks edges of the graph of a loss before its backward; runs no code of the script.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from tuimon.model.loop import MAX_NAMES, Reach
from tuimon.model.text import plain
from tuimon.train.layers import unwrap

MAX_NODES = 20_000  # about twenty milliseconds, at a handful of steps of a run
STEPS = frozenset((0, 1, 2, 8, 64, 512))  # updates whose backward is looked at
_MAX_DEPTH = 2  # of lists in lists
_LEAF = "torch::autograd::AccumulateGrad"

Roots = list[tuple[str, nn.Module]]


def leaves_below(roots: Iterable[torch.Tensor]) -> tuple[dict[int, nn.Parameter], bool]:
    """(The parameters that these losses reach by id, whether the graph was walked to its ends)."""
    waiting: deque[Any] = deque(node for root in roots if (node := root.grad_fn) is not None)
    known: dict[int, Any] = {}  # keeps the nodes alive, so that their ids stay theirs
    found: dict[int, nn.Parameter] = {}
    while waiting and len(known) < MAX_NODES:
        node = waiting.popleft()
        if id(node) in known:
            continue
        known[id(node)] = node
        for each, _ in node.next_functions:
            if each is None:
                continue
            if each.name() != _LEAF:
                waiting.append(each)
            elif type(leaf := each.variable) is nn.Parameter:
                found[id(leaf)] = leaf
    return found, not waiting


def reach_of(
    losses: Iterable[torch.Tensor],
    *,
    step: int,
    roots: Roots,
    owned: Mapping[int, torch.Tensor],
    names: Mapping[int, str],
    late: dict[int, str],
) -> Reach | None:
    """What a loss reaches; None where it has no graph.

    Args:
        step: index of the update that it leads to.
        roots: (prefix of its names, root module) of the watched models.
        owned: what all optimizers hold, by id.
        names: id of a parameter -> its name, as the models were when an optimizer was made.
        late: names of those that have joined a model since; those that are found are added.
    """
    leaves, is_whole = leaves_below(losses)
    if not leaves:
        return None
    members = dict(_members(roots))
    trained = {key: param for key, param in owned.items() if param.requires_grad}
    unowned = {key: leaf for key, leaf in leaves.items() if key not in owned}
    concealed = dict(_hidden(roots)) if unowned else {}
    if step == 0:
        late |= {k: members[k] for k in unowned if k in members and k not in names}
    known = [members[key] for key in unowned if key in members]
    hidden = [concealed[key] for key in unowned if key in concealed and key not in members]
    return Reach(
        step=step,
        is_whole=is_whole,
        owned=len(trained),
        owned_elements=sum(param.numel() for param in trained.values()),
        reached=sum(key in leaves for key in trained),
        unowned=len(unowned),
        unowned_elements=sum(leaf.numel() for leaf in unowned.values()),
        unowned_names=known[:MAX_NAMES],
        late=[late[key] for key in unowned if key in late][:MAX_NAMES],
        hidden=hidden[:MAX_NAMES],
        loose=len(unowned) - len(known) - len(hidden),
        orphans=sum(key not in members and key not in leaves for key in trained),
        frozen_elements=sum(p.numel() for p in owned.values() if not p.requires_grad),
    )


def _members(roots: Roots) -> Iterator[tuple[int, str]]:
    for prefix, root in roots:
        for name, param in unwrap(root).named_parameters():
            yield id(param), plain(prefix + name, 120)


def _hidden(roots: Roots) -> Iterator[tuple[int, str]]:
    """Parameters of training modules that a model keeps where it does not know them as its own."""
    for prefix, root in roots:
        registered = {id(module) for module in root.modules()}
        for path, module in root.named_modules():
            for key, value in list(vars(module).items()):
                if key.startswith("_") or type(value) not in (list, tuple, dict):
                    continue
                where = plain(f"{prefix}{path}.{key}".strip("."), 80)
                for place, each in _modules_in(value, 0):
                    if id(each) not in registered and each.training:
                        for name, param in each.named_parameters():
                            yield id(param), plain(f"{where}{place}.{name}", 120)


def _modules_in(container: Any, depth: int) -> Iterator[tuple[str, nn.Module]]:
    pairs = container.items() if type(container) is dict else enumerate(container)
    for key, value in pairs:
        if isinstance(value, nn.Module):
            yield f"[{key}]", value
        elif type(value) in (list, tuple, dict) and depth < _MAX_DEPTH:
            for inner, module in _modules_in(value, depth + 1):
                yield f"[{key}]{inner}", module
