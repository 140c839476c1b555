"""What a training begins with: its weights before the first update, its optimizers' settings.

Reads only, once; tensors on a device are left out, because reading them would make it wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from tuimon.model.samples import StartingWeights
from tuimon.train.samples.spectrum import evenly
from tuimon.train.stats import host_number, measurable

MAX_WEIGHTS = 256  # parameters that are looked at, those with two axes and more first
MAX_ELEMENTS = 1 << 14  # of each: its spread is right within a hundredth
# Below the normal numbers of single precision: no initialisation makes them, old memory does.
_FAINT = 1.2e-38
_NUMBERS = ("momentum", "eps", "alpha", "weight_decay", "dampening", "initial_lr", "max_lr")


def starting_weights(
    pairs: Iterable[tuple[str, torch.Tensor]], roots: Iterable[tuple[str, nn.Module]]
) -> StartingWeights | None:
    """Parameters as they are now; None where there is nothing to read.

    Args:
        pairs: (name, parameter).
        roots: (prefix of its names, root module).
    """
    fans = _fans(roots)
    rows: list[tuple[str, int, float, float, float, float]] = []
    for name, param in sorted(pairs, key=lambda pair: pair[1].dim() < 2)[:MAX_WEIGHTS]:
        values = measurable(param) if param.device.type == "cpu" else None
        part = None if values is None else evenly(values, MAX_ELEMENTS)
        if part is None:
            continue
        part = part.float()
        low, high = (float(bound) for bound in torch.aminmax(part))
        size = part.abs()
        absmax = max(-low, high)
        # A sum of squares must not overflow where the weights themselves do not.
        scale = absmax if 0 < absmax < math.inf else 1.0
        rms = scale * math.sqrt(float((part / scale).square().mean()))
        faint = float(((size > 0) & (size < _FAINT)).float().mean())
        fan_in = fans.get(id(param)) or _fan_of(list(param.shape))
        rows.append((name, fan_in, rms, absmax, high - low, faint))
    if not rows:
        return None
    figures = np.array([row[2:] for row in rows], "<f4")
    columns = [np.ascontiguousarray(column).tobytes() for column in figures.T]
    return StartingWeights([row[0] for row in rows], [row[1] for row in rows], *columns)


def settings_of(optimizer: Optimizer) -> dict[str, float]:
    """The numbers of the first group that decide how the optimizer moves."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    found = {name: host_number(group[name]) for name in _NUMBERS if name in group}
    betas = group.get("betas")
    if isinstance(betas, list | tuple):
        found |= {f"beta{at}": host_number(beta) for at, beta in enumerate(betas[:2], 1)}
    return {name: value for name, value in found.items() if value is not None}


def _fans(roots: Iterable[tuple[str, nn.Module]]) -> dict[int, int]:
    """id of a weight -> how many numbers one output of its module is made of."""
    found: dict[int, int] = {}
    for _, root in roots:
        for module in root.modules():
            weight = vars(module).get("_parameters", {}).get("weight")
            if not isinstance(weight, torch.Tensor) or weight.dim() < 2:
                continue
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                found[id(weight)] = 1
            elif isinstance(module, nn.modules.conv._ConvTransposeNd):
                found[id(weight)] = weight.numel() // max(1, weight.shape[1])
            else:
                found[id(weight)] = weight.numel() // max(1, weight.shape[0])
    return found


def _fan_of(shape: list[int]) -> int:
    """Of a weight whose module says nothing: between its two sides."""
    if len(shape) < 2:
        return 1
    return max(1, round(math.sqrt(math.prod(shape[:-2]) * shape[-1] * math.prod(shape[:-1]))))
