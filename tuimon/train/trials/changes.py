"""What a trial changes in a replay: data, parameters, or single operations. One thing each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, NamedTuple

import torch

from tuimon.model.autopsy import PoisonedLeaf
from tuimon.train.autopsy import looks
from tuimon.train.autopsy.names import Names
from tuimon.train.autopsy.sites import Place


class Setting(NamedTuple):
    """Where a replay runs.

    Attributes:
        names: of its parameters and modules.
        entry: the function above which nothing belongs to the replay.
        followed: the line of the script that is being followed, where none is on the stack.
    """

    names: Names
    entry: CodeType
    followed: Callable[[], Place | None]


class Change:
    """Nothing is changed; what is derived from it overrides what it changes.

    Attributes:
        words: the change as a phrase.
        count: how much it has changed in the newest replay: elements, tensors or operations.
    """

    words = "nothing is changed"

    def __init__(self) -> None:
        self.count = 0

    def begin(self) -> None:
        """A replay begins."""
        self.count = 0

    def data(self, tensor: torch.Tensor) -> torch.Tensor:
        """What becomes of a tensor of the script's that is no parameter; itself if nothing."""
        return tensor

    def prepare(self, names: Names) -> None:
        """Change the stand-ins of parameters and buffers, before the forward."""

    def seed(self, gradient: torch.Tensor) -> torch.Tensor:
        """What becomes of a gradient with which the backward begins."""
        return gradient

    def gradient(self, name: str, value: torch.Tensor) -> None:
        """See the gradient of a parameter before it is dropped."""

    def mode(self, setting: Setting) -> AbstractContextManager[Any]:
        """What stands round forward and backward, entered once for each."""
        return contextlib.nullcontext()


class Without(Change):
    """Samples are left out: others stand in their places, so that every shape stays."""

    def __init__(self, left_out: Sequence[int], batch: int) -> None:
        super().__init__()
        rest = [index for index in range(batch) if index not in set(left_out)]
        listed = ", ".join(map(str, left_out[:8])) + (" …" if len(left_out) > 8 else "")
        self.words = f"without sample{'s' if len(left_out) > 1 else ''} {listed} of the batch"
        self._batch = batch
        self._rows = list(range(batch))
        for turn, index in enumerate(left_out):
            self._rows[index] = rest[turn % len(rest)]

    def data(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != self._batch:
            return tensor
        if tensor.layout is not torch.strided:
            return tensor
        self.count += 1
        return tensor.index_select(0, torch.tensor(self._rows, device=tensor.device))


class Collected(Change):
    """Nothing is changed; the gradients of the replay are kept.

    Attributes:
        gradients: by name of the parameter, without the loss scale.
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.gradients: dict[str, torch.Tensor] = {}
        self._scale = scale or 1.0

    def begin(self) -> None:
        super().begin()
        self.gradients.clear()

    def gradient(self, name: str, value: torch.Tensor) -> None:
        self.gradients[name] = value.detach() / self._scale


class Unscaled(Change):
    """The backward begins without a loss scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.words = f"the backward began without the loss scale of {scale:g}"
        self._scale = scale

    def seed(self, gradient: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return gradient / self._scale


class Finite(Change):
    """Whatever of the data is NaN or +Inf gets finite values; what is only -Inf may be a mask."""

    words = "what is not finite in the data was made finite"

    def data(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dtype.is_floating_point or not looks.is_bad(tensor):
            return tensor
        bad = torch.isnan(tensor) | torch.isposinf(tensor)
        self.count += int(bad.sum())
        fine = tensor[torch.isfinite(tensor)]
        middle = fine.mean() if fine.numel() else tensor.new_zeros(())
        return torch.where(bad, middle, tensor)


class Mended(Change):
    """Poisoned leaves get finite values where they are not finite."""

    def __init__(self, leaves: Sequence[PoisonedLeaf]) -> None:
        super().__init__()
        self._leaves = list(leaves)
        names = list(dict.fromkeys(leaf.tensor.name or leaf.kind for leaf in leaves))
        self.words = f"{', '.join(names[:4])} made finite"

    def data(self, tensor: torch.Tensor) -> torch.Tensor:
        if not any(_is_that(leaf, tensor) for leaf in self._leaves):
            return tensor
        return self._mended(tensor)

    def prepare(self, names: Names) -> None:
        wanted = {leaf.tensor.name for leaf in self._leaves if leaf.kind in ("parameter", "buffer")}
        with looks.apart():
            for name, tensor in _state(names):
                if name in wanted and looks.is_bad(tensor):
                    tensor.data.copy_(self._mended(tensor.data))

    def _mended(self, tensor: torch.Tensor) -> torch.Tensor:
        finite = torch.isfinite(tensor)
        self.count += int((~finite).sum())
        middle = tensor[finite].mean() if bool(finite.any()) else tensor.new_zeros(())
        return torch.where(finite, tensor, middle)


def _is_that(leaf: PoisonedLeaf, tensor: torch.Tensor) -> bool:
    """Whether a tensor is the one that an autopsy has told of."""
    told = leaf.tensor
    if leaf.kind in ("parameter", "buffer", "optimizer-state"):
        return False
    if list(tensor.shape[: looks.MAX_AXES]) != told.shape or tensor.numel() != told.numel:
        return False
    if not tensor.dtype.is_floating_point or not looks.is_bad(tensor):
        return False
    note = looks.note_of(tensor)
    counted = (note.dtype, note.nan, note.posinf, note.neginf)
    return counted == (told.dtype, told.nan, told.posinf, told.neginf)


def _state(names: Names) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers of a replay by name."""
    found = list(names.parameters.items())
    for path, module in names.modules.items():
        dot = "." if path else ""
        found += [
            (f"{path}{dot}{name}", buffer)
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
    return found


def told(count: int, what: str = "element") -> str:
    """How many of something."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
