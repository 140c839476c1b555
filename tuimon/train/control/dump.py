"""Writes parameters and gradients of chosen layers to disk: safetensors, and statistics as JSON.

Works on what it is given and never raises; a dump is complete or absent.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tuimon.feed import paths, private
from tuimon.model.units import json_number, size_bytes
from tuimon.train.stats import measurable

MARGIN_BYTES = 64 << 20  # left free on the disk for the training itself
MARGIN_FRAC = 0.05
CHUNK_ELEMENTS = 1 << 22  # statistics walk a tensor in pieces, so that they need no copy of it


@dataclass(frozen=True)
class Outcome:
    """Where the dump lies, or the reason why there is none."""

    folder: Path | None = None
    layers: int = 0
    reason: str = ""


def write_dump(
    directory: str,
    layers: Sequence[tuple[str, torch.Tensor]],
    *,
    step: int,
    note: str = "",
    rank: int | None = None,
) -> Outcome:
    """Write `step-000123/` with `tensors.safetensors` and `statistics.json` below `directory`.

    Where there are several ranks, each writes its own: `step-000123-rank-0/`.

    Args:
        directory: absolute path; made if need be.
        layers: (name, parameter), the parameter with its gradient.
        step: index of the update that comes next.
        note: what a reader must know about the gradients.
        rank: of this process among several; None where it is alone.
    """
    if not layers:
        return Outcome(reason="none of the layers exists any more")
    root = Path(directory)
    temporary: Path | None = None
    made: list[Path] = []
    if problem := private.link_problem(root):
        return Outcome(reason=problem)
    try:
        needed = sum(_size(tensor) for _, tensor in _flatten(layers))
        free = paths.free_bytes(root)
        if needed + MARGIN_BYTES + int(MARGIN_FRAC * needed) > free:
            return Outcome(
                reason=f"the dump needs {size_bytes(needed)}, {size_bytes(free)} are free in {root}"
            )
        made = private.make_folder(root)
        temporary = Path(tempfile.mkdtemp(prefix=".tuimon-", dir=root))
        _write(temporary, layers, step, note)
        folder = _publish(temporary, root, step, "" if rank is None else f"-rank-{rank}")
    except Exception as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        private.take_back(made)
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Outcome(reason=f"cannot write to {root}: {text}")
    return Outcome(folder, len(layers))


def _flatten(layers: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Parameters and gradients with the names they have in the file."""
    result: list[tuple[str, torch.Tensor]] = []
    for name, param in layers:
        result.append((name, param))
        if param.grad is not None:
            result.append((f"{name}.grad", param.grad))
    return result


def _size(tensor: torch.Tensor) -> int:
    return 0 if tensor.device.type == "meta" else tensor.numel() * tensor.element_size()


def _write(folder: Path, layers: Sequence[tuple[str, torch.Tensor]], step: int, note: str) -> None:
    stored: dict[str, torch.Tensor] = {}
    described: dict[str, Any] = {}
    for name, tensor in _flatten(layers):
        plain, remark = _storable(tensor)
        if plain is not None:
            stored[name] = plain
        described[name] = {**statistics(tensor), "stored": plain is not None, "remark": remark}
    for name, param in layers:
        if param.grad is None:
            described[f"{name}.grad"] = None
    save_file(stored, folder / "tensors.safetensors", metadata={"format": "pt", "step": str(step)})
    document = {
        "schema": "tuimon.dump/1",
        "step": step,
        "note": note,
        "tensors": described,
    }
    text = json.dumps(document, indent=1, allow_nan=False)
    (folder / "statistics.json").write_text(text + "\n", encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(0o600)  # like the folder: weights are their owner's
        with open(file, "rb") as written:
            os.fsync(written.fileno())


def _publish(temporary: Path, root: Path, step: int, whose: str) -> Path:
    """Rename into place; a second dump of the same step gets a number of its own."""
    for attempt in range(1000):
        folder = root / (f"step-{step:06d}{whose}" + (f"-{attempt}" if attempt else ""))
        if folder.exists() or folder.is_symlink():
            continue
        try:
            temporary.rename(folder)
        except FileExistsError:
            continue
        return folder
    raise OSError(f"a thousand dumps of step {step} are there already")


def _storable(tensor: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """A dense contiguous copy in host memory that shares storage with nothing, and a remark."""
    if tensor.device.type == "meta":
        return None, "meta tensor: there are no values"
    tensor = tensor.detach()
    remark = ""
    local = getattr(tensor, "to_local", None)
    if local is not None:
        tensor, remark = local(), "local shard"
    if tensor.layout is not torch.strided:
        tensor, remark = tensor.to_dense(), "sparse: stored dense"
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    if tensor.dtype.is_complex:
        tensor, remark = torch.view_as_real(tensor), "complex: last dimension is (real, imaginary)"
    copy = tensor.to("cpu").clone(memory_format=torch.contiguous_format)
    return copy, remark


def statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Shape, dtype, exact non-finite counts, and figures over the finite values in float64."""
    result: dict[str, Any] = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
    values = measurable(tensor)
    local = getattr(tensor, "to_local", None)
    if local is not None:  # figures are of what this rank holds
        tensor = local()
    if values is None and tensor.device.type != "meta" and tensor.layout is torch.strided:
        values = tensor.detach().double() if tensor.numel() and not tensor.is_complex() else None
    if values is None:
        return result
    flat = values.reshape(-1)
    nan = posinf = neginf = finite_count = 0
    low, high, total, squares = math.inf, -math.inf, 0.0, 0.0
    for start in range(0, flat.numel(), CHUNK_ELEMENTS):
        chunk = flat[start : start + CHUNK_ELEMENTS].to("cpu", torch.float64)
        nan += int(torch.isnan(chunk).sum())
        posinf += int((chunk == math.inf).sum())
        neginf += int((chunk == -math.inf).sum())
        finite = chunk[torch.isfinite(chunk)]
        if finite.numel():
            finite_count += finite.numel()
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            total += float(finite.sum())
            squares += float((finite * finite).sum())
    result |= {"nan": nan, "posinf": posinf, "neginf": neginf, "numel": flat.numel()}
    if finite_count:
        mean = total / finite_count
        variance = max(0.0, squares / finite_count - mean * mean)
        result |= {
            "min": json_number(low),
            "max": json_number(high),
            "mean": json_number(mean),
            "std": json_number(math.sqrt(variance)),
        }
    return result
