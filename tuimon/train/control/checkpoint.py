"""Writes what a training needs to go on later: weights, optimizers, loss scale, random streams.

The file loads with `torch.load(…, weights_only=True)`, which is tried before it gets its name.
Never raises; a checkpoint is complete or absent.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tuimon.feed import paths, private
from tuimon.model.text import plain
from tuimon.model.units import size_bytes
from tuimon.train.control.dump import MARGIN_BYTES, MARGIN_FRAC, Outcome
from tuimon.train.layers import unwrap

SCHEMA = "tuimon.checkpoint/1"


def write_checkpoint(
    directory: str,
    models: Sequence[tuple[str, nn.Module]],
    optimizers: Sequence[torch.optim.Optimizer],
    scalers: Sequence[Any],
    *,
    step: int,
) -> Outcome:
    """Write `checkpoint-000123.pt` below `directory`.

    Args:
        directory: absolute path; made if need be.
        models: (prefix of its names, root module).
        step: index of the update that comes next; its gradients are not part of the file.
    """
    root = Path(directory)
    temporary: Path | None = None
    made: list[Path] = []
    if problem := private.link_problem(root):
        return Outcome(reason=problem)
    try:
        state = _state(models, optimizers, scalers, step)
        needed, free = sum(map(_size, _tensors(state))), paths.free_bytes(root)
        if needed + MARGIN_BYTES + int(MARGIN_FRAC * needed) > free:
            short = f"{size_bytes(needed)}, {size_bytes(free)} are free in {root}"
            return Outcome(reason=f"the checkpoint needs {short}")
        made = private.make_folder(root)
        handle, name = tempfile.mkstemp(prefix=".tuimon-", suffix=".pt", dir=root)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        torch.load(temporary, weights_only=True, mmap=True, map_location="cpu")
        place = _publish(temporary, root, step)
    except Exception as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        private.take_back(made)
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Outcome(reason=f"no checkpoint in {root}: {plain(text, 300)}")
    return Outcome(place, len(models))


def _state(
    models: Sequence[tuple[str, nn.Module]],
    optimizers: Sequence[torch.optim.Optimizer],
    scalers: Sequence[Any],
    step: int,
) -> dict[str, Any]:
    with torch.no_grad():
        named = {prefix.rstrip(".") or "model": unwrap(model) for prefix, model in models}
        for model in named.values():
            for tensor in (*model.parameters(), *model.buffers()):
                if hasattr(tensor, "to_local"):
                    raise ValueError("the parameters are sharded; save by the script's own means")
        return {
            "schema": SCHEMA,
            "step": step,
            "models": {name: model.state_dict() for name, model in named.items()},
            "optimizers": [each.state_dict() for each in optimizers],
            "scalers": [each.state_dict() for each in scalers],
            "random": _random_streams(),
        }


def _random_streams() -> dict[str, Any]:
    streams: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        streams["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        streams["numpy"] = [kind, torch.tensor(keys.astype("int64")), *rest]
    return streams


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _size(tensor: torch.Tensor) -> int:
    return 0 if tensor.device.type == "meta" else tensor.numel() * tensor.element_size()


def _publish(temporary: Path, root: Path, step: int) -> Path:
    """Give the file its name, without ever replacing another; a second one gets a number."""
    for attempt in range(1000):
        place = root / (f"checkpoint-{step:06d}" + (f"-{attempt}" if attempt else "") + ".pt")
        try:
            os.link(temporary, place)
        except FileExistsError:
            continue
        temporary.unlink()
        return place
    raise OSError(f"a thousand checkpoints of step {step} are there already")
