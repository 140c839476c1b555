"""The answer to `Inspect`: a layer's parameters and gradients as they are, and what it last gave.

Belongs to the training thread, at the gate. Reads only; the forward that is run again for the
outputs is put back bit for bit, as an autopsy's is.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from tuimon.model.inspection import MAX_TENSORS, Inspected, InspectReply
from tuimon.model.samples import Activation
from tuimon.model.text import plain
from tuimon.train.autopsy.again import outputs_again
from tuimon.train.control.policy import FULL
from tuimon.train.layers import unwrap
from tuimon.train.samples.elements import inspected

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

MAX_PARAMS = 4  # each with its gradient; the rest of `MAX_TENSORS` is for outputs
RERUN_LIMIT_S = 10.0  # a forward that takes longer is not run again
MAX_NAMED_LEFT_OUT = 3


def inspect_layer(observer: Observer, layer: str, id_: str, track: Track) -> InspectReply | str:
    """What there is to see of a layer, or why there is nothing."""
    began_s = time.perf_counter()
    step = observer.roster.next_step()
    params = observer.roster.dump_tensors([layer])
    is_param = any(name == layer for name, _ in params)
    path, root, module = _module_of(observer, layer.rpartition(".")[0] if is_param else layer)
    if not params and module is None:
        return f"no layer {plain(layer, 100)!r}; names are as in the layer table"
    items: list[Inspected] = []
    notes: list[str] = []
    gradient = observer.gradient_note(track)
    with torch.no_grad(), torch._C.DisableTorchFunction():
        for name, param in params[:MAX_PARAMS]:
            items.append(inspected("parameter", name, param, step=step))
            if param.grad is not None:
                items.append(inspected("gradient", name, param.grad, step=step))
            else:
                notes.append(f"{name} has no gradient")
    if len(params) > MAX_PARAMS:
        notes.append(f"{len(params) - MAX_PARAMS:,} more parameters below: inspect them by name")
    if any(item.what == "gradient" for item in items):
        notes.append(gradient + _clipped(observer, track))
    if root is not None and module is not None:
        items += _outputs(observer, (root, module), path, notes, step=step)
    return InspectReply(
        id_,
        step,
        plain(layer, 200),
        kind=plain(type(module).__name__, 60) if module is not None else "",
        items=items[:MAX_TENSORS],
        notes=[plain(note, 200) for note in notes],
        took_s=time.perf_counter() - began_s,
    )


def _clipped(observer: Observer, track: Track) -> str:
    clipped = any(call.touches(track.plan.ids) for call in observer.clips.calls)
    return ", and after clipping" if clipped else ""


def _module_of(observer: Observer, wanted: str) -> tuple[str, nn.Module | None, nn.Module | None]:
    """(path, root, module) of a module's path as the layer table begins its names."""
    for prefix, root in observer.roster.roots():
        if not wanted.startswith(prefix.rstrip(".")):
            continue
        inner = wanted.removeprefix(prefix) if wanted != prefix.rstrip(".") else ""
        with contextlib.suppress(AttributeError):
            return wanted, root, unwrap(root).get_submodule(inner)
    return wanted, None, None


def _outputs(
    observer: Observer,
    place: tuple[nn.Module, nn.Module],
    path: str,
    notes: list[str],
    *,
    step: int,
) -> list[Inspected]:
    """What the module gave: run again where that can be, else as last sampled."""
    found, reason = _run_again(observer, *place)
    name = path or type(place[1]).__name__
    if found:
        if len(found) > 1:
            return [
                inspected("output", f"{name} [{at}]", each, source="run again", step=step)
                for at, each in enumerate(found)
            ]
        return [inspected("output", name, found[0], source="run again", step=step)]
    notes.append(f"outputs: {reason}")
    sampled = observer.extras.seen.get(path)
    return [] if sampled is None else [_of_sample(name, *sampled)]


def _run_again(
    observer: Observer, root: nn.Module, module: nn.Module
) -> tuple[list[torch.Tensor], str]:
    examiner = observer.examiner
    if examiner.level != FULL:
        return [], f"autopsies are {examiner.level}: no code of the script is run again"
    calls = [call for call in examiner.scenes.calls if call.module() is root]
    if not calls:
        short = "steps are too short for their forwards to be kept"
        return [], short if examiner.scenes.is_short else "no forward of this update was kept"
    took_s = observer.times.forward_s
    if took_s is not None and took_s > RERUN_LIMIT_S:
        return [], f"the forward takes {took_s:.0f} s: it was not run again"
    was, observer.off = observer.off, True  # no tap of ours takes part
    try:
        observer.extras.take_off()
        return outputs_again(calls[-1], module)
    finally:
        observer.off = was


def _of_sample(name: str, step: int, seen: Activation) -> Inspected:
    return Inspected(
        "output",
        plain(name, 200),
        f"sampled at step {step:,}",
        dtype=seen.dtype,
        numel=seen.numel,
        mean=seen.mean,
        rms=seen.rms,
        absmax=seen.absmax,
        note="" if seen.zero_frac is None else f"{seen.zero_frac:.1%} exact zeros",
    )
