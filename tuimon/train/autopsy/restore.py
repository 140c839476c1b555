"""Puts back, bit for bit, what a re-run of the user's modules may touch.

Parameters and buffers are exchanged for stand-ins, so that the real ones, their gradients and
their hooks are never met; everything else that modules can reach is noted before and put back
after: plain attributes, containers, closures, class attributes, generators, tensors, arrays.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as _torch_module

from tuimon.train.autopsy import streams

MAX_PLACES = 200_000  # visited for one re-run, about 0.2 s
MAX_BYTES = 1 << 28  # of tensors and arrays that are no parameters and no buffers

TENSORS_LEFT = "not every tensor that the modules reach was looked after"
GLOBALS_LEFT = "not every global variable of the script was looked after"

_SCALARS = frozenset(
    (int, float, bool, str, bytes, complex, type(None), type, range, slice, type(Ellipsis))
)
_GLOBAL_HOOKS = [
    value
    for name, value in vars(_torch_module).items()
    if name.startswith("_global_") and isinstance(value, dict)
]


class CannotKeep(Exception):
    """Something that a re-run may change could not be put back, so nothing is run."""


class Kept:
    """What modules could change, as it is now; `put_back` may be called again after an error.

    Attributes:
        generators: random streams of their own that were met on the way.
        notes: what could not be looked after, in sentences for a person.
    """

    def __init__(self, roots: Iterable[nn.Module], also: Iterable[Any] = ()) -> None:
        """Walk through everything that `roots` and `also` reach.

        Raises:
            CannotKeep: it is too much, or of a kind that cannot be put back.
        """
        self.generators: list[Any] = []
        self.notes: list[str] = []
        self._seen: dict[int, Any] = {}  # holds what was met, so that ids stay theirs
        self._undo: list[Callable[[], None]] = []
        self._containers: list[dict[Any, Any] | list[Any]] = []
        self._places = 0
        self._bytes = 0
        self._own: dict[int, torch.Tensor] = {}
        listed = [module for root in roots for module in root.modules()]
        for module in listed:
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    self._own[id(tensor)] = tensor
        self._stand_ins: dict[int, Any] = {}
        self._is_strict = True  # what modules hold themselves must be put back, or nothing is run
        self._visit_all([*listed, *also, *_GLOBAL_HOOKS])
        self._is_strict = False
        for kind in dict.fromkeys(map(type, listed)):
            self._visit_class(kind)
        self._visit_globals({kind.__module__ for kind in map(type, listed)})

    # --- stand-ins --------------------------------------------------------------------------------

    @property
    def own_bytes(self) -> int:
        """Size of all parameters and buffers."""
        return sum(each.numel() * each.element_size() for each in self._own.values())

    def put_stand_ins(self) -> None:
        """Exchange every parameter and buffer for a copy of itself, wherever modules hold it."""
        for key, tensor in self._own.items():
            self._stand_ins[key] = _stand_in(tensor)
        for container in self._containers:
            if isinstance(container, dict):
                for name, value in container.items():
                    if (other := self._stand_ins.get(id(value))) is not None:
                        dict.__setitem__(container, name, other)
            else:
                for index, value in enumerate(container):
                    if (other := self._stand_ins.get(id(value))) is not None:
                        list.__setitem__(container, index, other)

    def put_back(self) -> None:
        """Make everything what it was. Safe to call again."""
        failed: Exception | None = None
        for undo in self._undo:
            try:
                undo()
            except Exception as error:  # the rest must be put back all the same
                failed = failed or error
        if failed is not None:
            raise failed

    # --- the walk ---------------------------------------------------------------------------------

    def _visit_all(self, values: Iterable[Any]) -> None:
        """Depth first, without recursion: what is reached may be deep."""
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            kind = type(value)
            if kind in _SCALARS or id(value) in self._seen or id(value) in self._own:
                continue
            self._seen[id(value)] = value
            self._places += 1
            if self._places > MAX_PLACES:
                raise CannotKeep("its modules reach more objects than can be looked after")
            waiting.extend(self._keep(value, kind))

    def _keep(self, value: Any, kind: type) -> Iterable[Any]:
        """Note how one object is put back; what is to be visited from there."""
        if issubclass(kind, torch.Tensor):
            self._keep_tensor(value)
        elif issubclass(kind, dict):
            return self._keep_dict(value)
        elif issubclass(kind, list):
            return self._keep_list(value)
        elif issubclass(kind, deque | set | bytearray):
            return self._keep_collection(value)
        elif issubclass(kind, tuple | frozenset):
            return list(value)
        elif streams.is_generator(value):
            if not isinstance(value, random.SystemRandom):
                self.generators.append(value)
        elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            self._keep_array(value)
        elif issubclass(kind, types.FunctionType):
            return self._keep_function(value)
        elif issubclass(kind, types.MethodType):
            return (value.__func__, value.__self__)
        elif issubclass(kind, functools.partial):
            return (value.func, value.args, value.keywords)
        elif kind is itertools.count:
            self._stand_ins[id(value)] = _same_count(value)
        elif issubclass(kind, Iterator) and kind.__module__ in ("builtins", "itertools"):
            if self._is_strict:
                raise CannotKeep(f"a {kind.__name__} would be advanced by a re-run")
        elif not (_is_foreign(kind) or issubclass(kind, _OF_THE_LOOP)):
            return self._keep_object(value, kind)
        return ()

    def _keep_dict(self, value: dict[Any, Any]) -> Iterable[Any]:
        base = OrderedDict if isinstance(value, OrderedDict) else dict
        items = list(base.items(value))
        self._containers.append(value)

        def undo() -> None:
            now = list(base.items(value))
            if len(now) != len(items) or any(
                a is not c or b is not d for (a, b), (c, d) in zip(now, items, strict=True)
            ):
                base.clear(value)
                base.update(value, items)

        self._undo.append(undo)
        return [item for _, item in items]

    def _keep_list(self, value: list[Any]) -> Iterable[Any]:
        items = list(list.__iter__(value))
        self._containers.append(value)

        def undo() -> None:
            now = list(list.__iter__(value))
            if len(now) != len(items) or any(a is not b for a, b in zip(now, items, strict=True)):
                list.__setitem__(value, slice(None), items)

        self._undo.append(undo)
        return items

    def _keep_collection(self, value: Any) -> Iterable[Any]:
        base: Any = next(kind for kind in (deque, set, bytearray) if isinstance(value, kind))
        items = base(value, value.maxlen) if base is deque else base(value)

        def undo() -> None:
            if base(value) != base(items) or base is not bytearray:
                base.clear(value)
                (base.update if base is set else base.extend)(value, items)

        self._undo.append(undo)
        return () if base is bytearray else list(items)

    def _keep_function(self, value: types.FunctionType) -> Iterable[Any]:
        found: list[Any] = [value.__defaults__, value.__kwdefaults__, value.__dict__]
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self._undo.append(functools.partial(setattr, cell, "cell_contents", content))
            found.append(content)
        return found

    def _keep_object(self, value: Any, kind: type) -> Iterable[Any]:
        found: list[Any] = []
        with contextlib.suppress(AttributeError):
            found.append(object.__getattribute__(value, "__dict__"))
        for slot in _slots(kind):
            try:
                content = slot.__get__(value, kind)
            except AttributeError:
                continue
            self._undo.append(functools.partial(_put_slot, slot, value, content))
            found.append(content)
        return found

    def _visit_class(self, kind: type) -> None:
        """Class attributes of the user's modules: a counter may live there."""
        for base in kind.__mro__:
            if _is_foreign(base) or base.__module__.partition(".")[0] == "torch":
                continue
            for name, value in list(vars(base).items()):
                if not name.startswith("__"):
                    self._undo.append(functools.partial(_put_attribute, base, name, value))
                function = (
                    value.__func__ if isinstance(value, staticmethod | classmethod) else value
                )
                if type(function) not in _SCALARS and not isinstance(function, property):
                    self._visit_all([function])

    def _visit_globals(self, names: set[str]) -> None:
        """Globals of the modules that the classes come from, as far as the bounds allow."""
        for name in names:
            source = sys.modules.get(name)
            if source is None or _is_installed(source):
                continue
            values = vars(source)
            saved = dict(values)
            self._undo.append(functools.partial(_put_globals, values, saved))
            for each in saved.values():
                if issubclass(type(each), types.ModuleType | torch.optim.Optimizer | nn.Module):
                    continue
                try:
                    self._visit_all([each])
                except CannotKeep:
                    self._note(GLOBALS_LEFT)
                    return
                except Exception:  # it cannot be asked; the others can
                    self._note(GLOBALS_LEFT)

    # --- tensors and arrays -----------------------------------------------------------------------

    def _keep_tensor(self, value: torch.Tensor) -> None:
        if type(value) not in (torch.Tensor, nn.Parameter):
            return
        try:
            if not _is_writable(value):
                return
            self._pay(value.numel() * value.element_size())
            version, content = value._version, value.detach().clone()
        except CannotKeep:
            raise
        except Exception:  # some only look plain: without memory, or from inside a transform
            self._note(TENSORS_LEFT)
            return
        self._undo.append(functools.partial(_put_tensor, value, content, version))

    def _keep_array(self, value: Any) -> None:
        if value.dtype.hasobject or not value.flags.writeable:
            return
        self._pay(value.nbytes)
        content = value.copy()

        def undo() -> None:
            value[...] = content

        self._undo.append(undo)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _pay(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_BYTES:
            raise CannotKeep("its modules hold more tensors than can be copied for a re-run")


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that takes the place of a parameter or buffer.

    Raises:
        CannotKeep: of a kind whose copies would not behave alike.
    """
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer):
        raise CannotKeep(f"it holds a {type(tensor).__name__}, which cannot be exchanged")
    if tensor.layout is torch.strided and tensor.device.type != "meta" and _is_emptied(tensor):
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


def _is_writable(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory and can be written as a whole."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_inference():
        return False
    # A nested one has no shape to ask for.
    return not _is_emptied(tensor) and (tensor.is_nested or not _overlaps(tensor))


def _is_emptied(tensor: torch.Tensor) -> bool:
    """Whether its memory was given up: torch would read there all the same, and crash."""
    return tensor.numel() > 0 and tensor.data_ptr() == 0


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two of its elements share their place, so that it cannot be written as a whole."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(stride == 0 and size > 1 for size, stride in pairs)


def _slots(kind: type) -> list[Any]:
    return [
        value
        for base in kind.__mro__  # members of types in C cannot be set, and need not be
        for value in (vars(base).values() if "__slots__" in vars(base) else ())
        if isinstance(value, types.MemberDescriptorType)
    ]


# Their instances belong to the loop around the modules, or have no state that Python can set.
_LEFT_ALONE = ("torch.optim", "torch.utils.data", "torch.distributed", "torch._dynamo", "tuimon")
_OF_THE_LOOP = (torch.optim.Optimizer, torch.utils.data.Dataset, torch.utils.data.DataLoader)
_FOREIGN_ROOTS = frozenset(
    ("builtins", "numpy", "threading", "_thread", "io", "_io", "logging", "weakref", "_weakref")
)


def _is_foreign(kind: type) -> bool:
    """Whether objects of this class are left alone."""
    name = kind.__module__
    if name.partition(".")[0] in _FOREIGN_ROOTS or issubclass(kind, types.ModuleType | type):
        return True
    return any(name == each or name.startswith(each + ".") for each in _LEFT_ALONE)


def _is_installed(source: types.ModuleType) -> bool:
    """Whether a module came with an installation rather than with the script."""
    file = getattr(source, "__file__", None)
    if file is None:
        return source.__name__ != "__main__"
    return "site-packages" in file or "dist-packages" in file or file.startswith(sys.base_prefix)


def _put_slot(slot: Any, owner: Any, content: Any) -> None:
    if slot.__get__(owner, type(owner)) is not content:
        slot.__set__(owner, content)


def _put_tensor(tensor: torch.Tensor, content: torch.Tensor, version: int) -> None:
    # By `data`, so that a graph which has saved the tensor does not see a new version.
    tensor.data.copy_(content)
    if tensor._version != version:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def _put_attribute(kind: type, name: str, value: Any) -> None:
    if vars(kind).get(name) is not value:
        setattr(kind, name, value)


def _put_globals(values: dict[str, Any], saved: dict[str, Any]) -> None:
    for name in [name for name in values if name not in saved]:
        del values[name]
    for name, value in saved.items():
        if values.get(name) is not value:
            values[name] = value
