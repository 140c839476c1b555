"""Runs a kept forward once more to see what one module gives; everything else is put back."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from tuimon.model.text import plain
from tuimon.train.autopsy.restore import CannotKeep
from tuimon.train.autopsy.sandbox import sandbox
from tuimon.train.autopsy.scene import Call
from tuimon.train.autopsy.surroundings import surroundings
from tuimon.train.layers import unwrap
from tuimon.train.leaves import leaves_of

MAX_OUTPUTS = 4  # tensors, over all calls of the module


def outputs_again(call: Call, target: nn.Module) -> tuple[list[torch.Tensor], str]:
    """(what `target` gives in the same forward, why there is none); taps of ours must be off."""
    module = call.module()
    if module is None:
        return [], "the model is gone"
    root = unwrap(module)
    found: list[torch.Tensor] = []

    def keep(_: nn.Module, args: Any, output: Any) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            tensors, _left = leaves_of((output,), {}, MAX_OUTPUTS)
            found.extend(each.detach().clone() for _, each in tensors[: MAX_OUTPUTS - len(found)])

    others = [each for each in tree_leaves((call.args, call.kwargs)) if not _is_tensor(each)]
    try:
        with sandbox([root], random_states=call.random, registered=call.generators, also=others):
            args, kwargs = tree_map(_copied, (call.args, call.kwargs))
            with ExitStack() as stack:
                stack.enter_context(surroundings(list(root.parameters())))
                for state in call.autocast:
                    stack.enter_context(
                        torch.autocast(
                            state.device_type,
                            state.dtype,
                            enabled=state.enabled,
                            cache_enabled=state.cache,
                        )
                    )
                handle = target.register_forward_hook(keep)
                try:
                    root(*args, **kwargs)
                finally:
                    handle.remove()
    except CannotKeep as reason:
        return [], f"the model was not run again: {reason}"
    except (Exception, SystemExit) as error:  # it would have ended there, the script has not
        return found, plain(f"the model failed when it was run again: {error}", 200)
    return found, "" if found else "this module was not called"


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)
