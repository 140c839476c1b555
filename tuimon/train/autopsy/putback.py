"""How single things are put back: tensors, arrays, memory, collections, files.

Each function notes what a thing is now and returns what makes it so again.
"""

from __future__ import annotations

import array
import contextlib
import io
import mmap
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import torch

Undo = Callable[[], None]


class CannotKeep(Exception):
    """Something that a re-run may change could not be put back, so nothing is run."""


# --- containers -----------------------------------------------------------------------------------


def dictionary(value: dict[Any, Any]) -> Undo:
    """Its items and their order."""
    base = OrderedDict if isinstance(value, OrderedDict) else dict
    items = list(base.items(value))

    def undo() -> None:
        now = list(base.items(value))
        if len(now) != len(items) or any(
            a is not c or b is not d for (a, b), (c, d) in zip(now, items, strict=True)
        ):
            base.clear(value)
            base.update(value, items)

    return undo


def sequence(value: Any) -> Undo:
    """The members of a list or a deque."""
    base: Any = deque if isinstance(value, deque) else list
    items = list(base.__iter__(value))

    def undo() -> None:
        now = list(base.__iter__(value))
        if len(now) != len(items) or any(a is not b for a, b in zip(now, items, strict=True)):
            base.clear(value)
            base.extend(value, items)

    return undo


def members(value: set[Any]) -> Undo:
    """The members of a set; those that stay are not touched, so that their order stays."""
    items = set(value)

    def undo() -> None:
        set.difference_update(value, set(value) - items)
        set.update(value, items)

    return undo


def of_the_loop(value: Any) -> list[Undo]:
    """Of what belongs to the loop only its own attributes, and the options of an optimizer."""
    own = [vars(value)]
    if isinstance(value, torch.optim.Optimizer):
        own += value.param_groups
    return list(map(dictionary, own))


# --- memory ---------------------------------------------------------------------------------------


def numpy_array(value: Any) -> Undo:
    """The elements of an array."""
    content = value.copy()

    def undo() -> None:
        value[...] = content

    return undo


def memory(value: Any, kind: type) -> tuple[Undo, int] | None:
    """(undo, bytes) of what else can be written to as memory; None for everything else."""
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None and issubclass(
        kind, ctypes._SimpleCData | ctypes.Array | ctypes.Structure | ctypes.Union
    ):
        raw = bytes(memoryview(value))
        place = ctypes.addressof(value)
        return lambda: void(ctypes.memmove(place, raw, len(raw))), len(raw)
    if issubclass(kind, array.array | bytearray):
        same = value[:]
        size = len(same) * (value.itemsize if issubclass(kind, array.array) else 1)
        return lambda: value.__setitem__(slice(None), same), size
    if issubclass(kind, mmap.mmap):
        return _mapped(value)
    if kind is memoryview and not value.readonly and value.c_contiguous:
        raw = value.tobytes()
        return lambda: value.cast("B").__setitem__(slice(None), raw), len(raw)
    return None


def void(_: object) -> None:
    """Nothing."""


def _mapped(value: mmap.mmap) -> tuple[Undo, int] | None:
    try:
        raw, place = value[:], value.tell()
    except ValueError:  # closed
        return None

    def undo() -> None:
        if value[:] != raw:
            value[:] = raw
        value.seek(place)

    return undo, len(raw)


def file(value: io.IOBase) -> Undo | None:
    """Where it is read next; None where there is nothing to put back.

    Raises:
        CannotKeep: it could be written to, or cannot be read again.
    """
    if value.closed:
        return None
    try:
        if isinstance(value, io.BytesIO | io.StringIO):
            return _held_in_memory(value)
        if not value.writable() and value.seekable():
            place = value.tell()
            return lambda: void(value.seek(place))
    except (OSError, ValueError):
        pass
    raise CannotKeep("a file that its modules hold would be read or written by a re-run")


def _held_in_memory(value: Any) -> Undo:
    content, place = value.getvalue(), value.tell()

    def undo() -> None:
        if value.getvalue() != content:
            value.seek(0)
            value.truncate()
            value.write(content)
        value.seek(place)

    return undo


# --- tensors --------------------------------------------------------------------------------------


class HeldTensor:
    """One tensor as it is now: elements, shape and place in memory, and what hangs on it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._is_leaf = tensor.is_leaf
        self._needs_grad = tensor.requires_grad
        self._hooks = None if tensor._backward_hooks is None else dict(tensor._backward_hooks)
        self._version = None if tensor.is_inference() else tensor._version
        self._is_plain = tensor.layout is torch.strided and not tensor.is_nested
        self._same = tensor.detach()
        self._bytes = tensor.untyped_storage().nbytes() if self._is_plain else 0
        self._content = self._same.clone()
        self.grad = tensor.grad if self._is_leaf and self._needs_grad else None

    def put_aside(self) -> None:
        """Out of reach of what adds to gradients."""
        if self.grad is not None:
            self._tensor.grad = None

    def put_back(self) -> None:
        """Make it what it was."""
        tensor = self._tensor
        if self._version is None:
            with torch.inference_mode():
                tensor.copy_(self._content)
            return
        if self._is_plain:
            self._put_back_memory(tensor)
        elif tensor._version != self._version:
            if tensor.is_nested:
                tensor.data.copy_(self._content)
            else:
                tensor.data = self._content
        self._put_back_graph(tensor)
        if tensor._version != self._version:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self._version,))

    def _put_back_memory(self, tensor: torch.Tensor) -> None:
        same = self._same
        storage = same.untyped_storage()
        if storage.nbytes() < self._bytes:
            storage.resize_(self._bytes)
        if (
            tensor.shape != same.shape
            or tensor.stride() != same.stride()
            or tensor.data_ptr() != same.data_ptr()
        ):
            tensor.data = same
        # By `data`, so that a graph which has saved the tensor does not see a new version.
        tensor.data.copy_(self._content)

    def _put_back_graph(self, tensor: torch.Tensor) -> None:
        if self._is_leaf:
            if not tensor.is_leaf:
                tensor.detach_()
            if tensor.requires_grad is not self._needs_grad:
                tensor.requires_grad_(self._needs_grad)
            if tensor.is_leaf and tensor.requires_grad and tensor.grad is not self.grad:
                tensor.grad = self.grad
        hooks: Any = tensor._backward_hooks
        if hooks is not None and hooks != (self._hooks or {}):
            hooks.clear()
            hooks.update(self._hooks or {})


def bytes_of(tensor: torch.Tensor) -> int:
    """Its size in memory; of a sparse one that of what it stores."""
    if tensor.layout is torch.strided:
        return tensor.numel() * tensor.element_size()
    if tensor.layout is torch.sparse_coo:
        return tensor._values().nbytes + tensor._indices().nbytes
    return tensor.values().nbytes * 2


def is_writable(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory and can be written as a whole."""
    if tensor.device.type == "meta":
        return False
    if tensor.layout is not torch.strided or tensor.is_nested:  # those have no strides to ask for
        return True
    return not is_emptied(tensor) and not _overlaps(tensor)


def is_emptied(tensor: torch.Tensor) -> bool:
    """Whether its memory was given up: torch would read there all the same, and crash."""
    return tensor.numel() > 0 and tensor.data_ptr() == 0


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two of its elements share their place, so that it cannot be written as a whole."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(stride == 0 and size > 1 for size, stride in pairs)


def fill(cell: Any, content: Any) -> None:
    """Give a closure's cell this content again."""
    cell.cell_contents = content


def empty(cell: Any) -> None:
    """Make a closure's cell one that was never filled."""
    with contextlib.suppress(ValueError):
        del cell.cell_contents


def fill_slot(slot: Any, owner: Any, content: Any) -> None:
    """Give a slot this content again."""
    try:
        if slot.__get__(owner, type(owner)) is content:
            return
    except AttributeError:  # taken away meanwhile
        pass
    slot.__set__(owner, content)


def empty_slot(slot: Any, owner: Any) -> None:
    """Make a slot one that was never filled."""
    with contextlib.suppress(AttributeError):
        slot.__delete__(owner)


def class_attribute(kind: type, name: str, value: Any) -> None:
    """Give a class this attribute again."""
    if vars(kind).get(name) is not value:
        setattr(kind, name, value)


def variables(values: dict[str, Any], saved: dict[str, Any]) -> None:
    """Give a module these globals again."""
    for name in [name for name in values if name not in saved]:
        del values[name]
    for name, value in saved.items():
        if values.get(name) is not value:
            values[name] = value
