"""Run a script as `__main__` and write a digest of what it leaves behind.

    python fingerprint.py OUT.json SCRIPT ARGS…

Digested, bit for bit: every parameter and state tensor of every optimizer that was ever made, the
loss scale of every GradScaler, and the random streams of torch, NumPy and Python. The optimizers
are kept alive to the end, with and without a monitor alike. NumPy and Python start from a seed,
so that their streams can be compared at all.
"""

from __future__ import annotations

import hashlib
import json
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

kept: list[Any] = []


def _keep(cls: type) -> None:
    original = cls.__init__  # type: ignore[misc]

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        kept.append(self)

    cls.__init__ = init  # type: ignore[misc]


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        if plain.is_sparse:
            plain = plain.to_dense()
        digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        digest.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            digest.update(repr(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        for each in value:
            _feed(digest, each)
    elif isinstance(value, int | float | bool | str | None):
        digest.update(repr(value).encode())


def _digest(*values: Any) -> str:
    digest = hashlib.sha256()
    for value in values:
        _feed(digest, value)
    return digest.hexdigest()[:16]


def summary() -> dict[str, str]:
    """Digest of each kept object and of each random stream."""
    found = {}
    for index, each in enumerate(kept):
        name = f"{index}:{type(each).__name__}"
        if isinstance(each, torch.optim.Optimizer):
            parameters = [p for group in each.param_groups for p in group["params"]]
            options = [{k: v for k, v in g.items() if k != "params"} for g in each.param_groups]
            state = [each.state.get(p, {}) for p in parameters]
            found[name] = _digest(parameters, options, state)
        else:
            found[name] = _digest(each.state_dict())
    found["rng torch"] = _digest(torch.get_rng_state())
    keys = np.random.get_state()
    found["rng numpy"] = _digest(list(np.asarray(keys[1]).tolist()), keys[2])
    found["rng python"] = _digest(repr(random.getstate()))
    return found


def main() -> None:
    target, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    sys.path[0] = str(Path(script).resolve().parent)
    random.seed(0)
    np.random.seed(0)
    _keep(torch.optim.Optimizer)
    _keep(torch.amp.GradScaler)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        target.write_text(json.dumps(summary()))


if __name__ == "__main__":
    main()
