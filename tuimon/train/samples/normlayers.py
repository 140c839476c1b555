"""Reads the running statistics of normalisation layers. Host memory only, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import torch
from torch import nn

from tuimon.model.loop import MAX_NORMS, NormLayer, NormLayers
from tuimon.model.text import plain
from tuimon.train.samples.summary import is_plain


def norm_layers(roots: Iterable[tuple[str, nn.Module]], step: int) -> NormLayers | None:
    """The layers with running statistics in host memory; None without any.

    Args:
        roots: (prefix of its names, root module).
        step: index of the newest update.
    """
    items: list[NormLayer] = []
    total = 0
    for prefix, root in roots:
        for path, module in root.named_modules():
            buffers: dict[str, Any] = vars(module).get("_buffers", {})
            mean, var = buffers.get("running_mean"), buffers.get("running_var")
            if not (_is_readable(mean) and _is_readable(var)):
                continue
            total += 1
            if len(items) < MAX_NORMS:
                items.append(_layer(plain(prefix + path, 120), module, mean, var))
    return NormLayers(step, items, total) if items else None


def _is_readable(tensor: Any) -> TypeGuard[torch.Tensor]:
    if not isinstance(tensor, torch.Tensor) or not is_plain(tensor):
        return False
    return tensor.device.type == "cpu" and tensor.numel() > 0


def _layer(name: str, module: nn.Module, mean: torch.Tensor, var: torch.Tensor) -> NormLayer:
    with torch.no_grad():
        low, high = (float(bound) for bound in torch.aminmax(var))
        least, most = (float(bound) for bound in torch.aminmax(mean))
    momentum = vars(module).get("momentum")
    count = vars(module)["_buffers"].get("num_batches_tracked")
    return NormLayer(
        name=name,
        kind=plain(type(module).__name__, 60),
        training=module.training,
        momentum=float(momentum) if isinstance(momentum, int | float) else None,
        tracked=int(count) if _is_readable(count) else None,
        is_initial=low == high == 1.0 and least == most == 0.0,
        mean_absmax=max(abs(least), abs(most)),
        var_low=low,
        var_high=high,
    )
