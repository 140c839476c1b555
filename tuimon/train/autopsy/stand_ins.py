"""Copies that take the place of tensors, locks and counters while user code is run a second time.

What has a stand-in is never met by that code; a tensor that it may meet is noted to be put back.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from tuimon.train.autopsy import putback
from tuimon.train.autopsy.foreign import SCALARS
from tuimon.train.autopsy.putback import CannotKeep, HeldTensor, is_emptied, is_writable

MAX_BYTES = 1 << 28  # of tensors and arrays that are no parameters and no buffers
TENSORS_LEFT = "not every tensor that the modules reach was looked after"

PLAIN_TENSORS = (torch.Tensor, nn.Parameter)
_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())


class StandIns:
    """Which things are exchanged, and by what.

    Attributes:
        own: parameters and buffers.
        notes: what could not be looked after, in sentences for a person.
    """

    def __init__(self) -> None:
        self.own: dict[int, torch.Tensor] = {}
        self.notes: list[str] = []
        self._of: dict[int, Any] = {}
        self._exchanged: dict[int, Any] = {}  # held, so that ids stay theirs
        self._held: list[HeldTensor] = []
        self._bytes = 0

    # --- what is exchanged ------------------------------------------------------------------------

    def adopt(self, module: nn.Module) -> list[Any]:
        """Exchange what a module holds itself; what the script has hung on those tensors."""
        found: list[Any] = []
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and id(tensor) not in self.own:
                self.own[id(tensor)] = tensor
                found.append(_attributes(tensor))
        return [each for each in found if each]

    def exchange(self, value: Any, kind: type) -> bool:
        """Whether a thing is exchanged: a counter that moves on, or a lock.

        The loop may hold that lock while it waits for the re-run.
        """
        if kind is itertools.count:
            other: Any = _same_count(value)
        elif kind is _LOCK or kind is _RLOCK:
            other = threading.Lock() if kind is _LOCK else threading.RLock()
        else:
            return False
        self.put(value, other)
        return True

    def put(self, value: Any, other: Any) -> None:
        """From now on `other` stands for `value`."""
        self._exchanged[id(value)] = value
        self._of[id(value)] = other

    def cut(self, tensor: torch.Tensor) -> None:
        """A part of a graph is exchanged: what a re-run does must not join that graph."""
        if id(tensor) in self._of or id(tensor) in self.own:
            return
        try:
            if tensor.grad_fn is None:
                return
            self.pay(putback.bytes_of(tensor))
            self.put(tensor, tensor.detach().clone())
        except CannotKeep:
            raise
        except Exception:
            self.note(TENSORS_LEFT)

    def has(self, value: Any) -> bool:
        """Whether something stands in for it."""
        return id(value) in self.own or id(value) in self._of

    def make(self) -> None:
        """Copy all parameters and buffers."""
        for key, tensor in self.own.items():
            self._of[key] = _copy(tensor)
        for held in self._held:
            held.put_aside()

    def other(self, value: Any) -> Any:
        """What stands in for a value; the value itself where nothing does."""
        kind: Any = type(value)
        if kind in SCALARS:
            return value
        if (other := self._of.get(id(value))) is not None:
            return other
        if issubclass(kind, tuple) and (kind is tuple or hasattr(kind, "_make")):
            members = [self.other(each) for each in tuple.__iter__(value)]
            if any(a is not b for a, b in zip(members, tuple.__iter__(value), strict=True)):
                return tuple(members) if kind is tuple else kind._make(members)
        return value

    # --- what is put back -------------------------------------------------------------------------

    def keep(
        self, value: torch.Tensor, undo: Callable[[putback.Undo], None], *, strict: bool
    ) -> Iterable[Any]:
        """Note a tensor where it is not exchanged; what the script has hung on it.

        Raises:
            CannotKeep: it is too large, or `strict` and hidden.
        """
        kind = type(value)
        is_own = id(value) in self.own
        if kind not in PLAIN_TENSORS and _hides_its_memory(kind):
            if strict and not is_own:
                raise CannotKeep(f"it holds a {kind.__name__}, which cannot be put back")
            self.note(TENSORS_LEFT)
            return ()
        try:
            with torch._C.DisableTorchFunctionSubclass():
                if is_writable(value):
                    self.pay(putback.bytes_of(value))
                    held = HeldTensor(value)
                    self._held.append(held)
                    undo(held.put_back)
        except CannotKeep:
            if not is_own:
                raise
            self.note(TENSORS_LEFT)
        except Exception:  # some only look plain: without memory, or from inside a transform
            self.note(TENSORS_LEFT)
        attributes = None if is_own else _attributes(value)
        return (attributes,) if attributes else ()

    def keep_array(self, value: Any, undo: list[putback.Undo]) -> Iterable[Any]:
        """Note an array; the objects that it holds.

        Raises:
            CannotKeep: it is too large.
        """
        if not value.flags.writeable:
            return ()
        self.pay(value.nbytes)
        undo.append(putback.numpy_array(value))
        return list(value.flat) if value.dtype.hasobject else ()

    def pay(self, size: int) -> None:
        """Account for a copy.

        Raises:
            CannotKeep: there are too many.
        """
        self._bytes += size
        if self._bytes > MAX_BYTES:
            raise CannotKeep("its modules hold more tensors than can be copied for a re-run")

    def note(self, text: str) -> None:
        """Tell of something, once."""
        if text not in self.notes:
            self.notes.append(text)


def _attributes(tensor: torch.Tensor) -> dict[str, Any] | None:
    found: dict[str, Any] | None = getattr(tensor, "__dict__", None)
    return found


def _hides_its_memory(kind: Any) -> bool:
    """Whether tensors of this class answer for themselves whatever is asked of them."""
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that takes the place of a parameter or buffer.

    Raises:
        CannotKeep: of a kind whose copies would not behave alike.
    """
    if type(tensor) not in (*PLAIN_TENSORS, nn.Buffer):
        raise CannotKeep(f"it holds a {type(tensor).__name__}, which cannot be exchanged")
    if tensor.layout is torch.strided and tensor.device.type != "meta" and is_emptied(tensor):
        raise CannotKeep("the memory of a parameter or buffer was given up")
    copy = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter) and type(tensor) is nn.Parameter:
        copy = nn.Parameter(copy, requires_grad=tensor.requires_grad)
    else:
        copy.requires_grad_(tensor.requires_grad)
    with contextlib.suppress(AttributeError):
        copy.__dict__.update(tensor.__dict__)
    return copy


def _same_count(value: Any) -> Any:
    """A counter that stands where `value` stands, which is not advanced by looking at it."""
    words = repr(value).removeprefix("count(").removesuffix(")").split(",")
    try:
        return itertools.count(*map(int, words))
    except ValueError:
        raise CannotKeep("an itertools.count would be advanced by a re-run") from None
