"""What a replay may call and read by itself: nothing that could change anything of the script's.

Everything that is not named here counts as unknown.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tuimon.train.autopsy.shadow import UNKNOWN

MAX_MEMBERS = 4096  # of a container that is looked through
_MAX_DEPTH = 4

_PLAIN = frozenset(
    (int, float, bool, complex, str, bytes, type(None), type(Ellipsis), range, torch.dtype,
     torch.device, torch.Size, torch.memory_format, torch.layout, torch.finfo, torch.iinfo)
)  # fmt: skip
TENSORS = (torch.Tensor, nn.Parameter)
_CLASSES = (*TENSORS, *_PLAIN, list, tuple, dict, slice, type)
_TENSOR_ATTRIBUTES = frozenset(
    ("shape", "dtype", "device", "layout", "T", "mT", "H", "mH", "ndim", "data", "real", "imag",
     "is_cuda", "is_sparse", "nbytes", "itemsize")
)  # fmt: skip
_TENSOR_METHODS = frozenset(
    ("tolist", "float", "double", "half", "bfloat16", "long", "int", "short", "bool", "cpu",
     "cuda", "dim", "ndimension", "numel", "nelement", "size", "stride", "type_as", "new_tensor",
     "is_floating_point", "is_complex", "is_contiguous", "get_device", "norm", "split", "unique",
     "unflatten", "stft", "element_size", "byte", "reshape_as", "view_as", "expand_as")
)  # fmt: skip
# Operators that do something else than compute, or that change what a tensor is.
_DENIED = frozenset(
    ("requires_grad_", "detach_", "set_", "resize_", "resize_as_", "rename_", "rename",
     "retain_grad", "set_data", "squeeze_", "unsqueeze_", "t_", "transpose_", "as_strided_",
     "swapaxes_", "swapdims_", "backward", "pin_memory", "record_stream", "numpy", "data",
     "sparse_resize_", "sparse_resize_and_clear_", "numpy_T", "matrix_H", "seed", "manual_seed",
     "save", "load", "resize", "resize_as")
)  # fmt: skip
_TORCH = (
    "tensor", "as_tensor", "from_numpy", "is_tensor", "is_floating_point", "broadcast_shapes",
    "get_default_dtype", "promote_types", "result_type", "is_complex", "numel",
)  # fmt: skip
_BUILTINS: tuple[Any, ...] = (
    abs, min, max, len, range, int, float, bool, complex, slice, tuple, list, dict, sum, round,
    pow, divmod, isinstance, any, all, sorted, str, zip, enumerate, reversed, type,
)  # fmt: skip
_READING: dict[type, frozenset[str]] = {
    list: frozenset(("index", "count", "copy")),
    tuple: frozenset(("index", "count")),
    torch.Size: frozenset(("numel", "index", "count")),
    dict: frozenset(("get", "items", "keys", "values", "copy")),
    str: frozenset(
        ("startswith", "endswith", "lower", "upper", "strip", "split", "replace", "join")
    ),
}
_CHANGING: dict[type, frozenset[str]] = {
    list: frozenset(("append", "extend", "insert")),
    dict: frozenset(("update", "setdefault")),
}


class Permitted(NamedTuple):
    """Something that may be called as it is.

    Attributes:
        owner: what it changes, so that it must be the replay's own; None for nothing.
    """

    function: Callable[..., Any]
    owner: Any = None


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is wholly known, and none of its methods is the script's."""
    kind = type(value)
    if kind in _PLAIN or kind in TENSORS:
        return True
    if depth > _MAX_DEPTH:
        return False
    if kind is slice:
        return all(is_plain(each, depth + 1) for each in (value.start, value.stop, value.step))
    if kind in (list, set, frozenset) or is_tuple(kind):
        return len(value) <= MAX_MEMBERS and all(is_plain(each, depth + 1) for each in value)
    if kind is dict:
        return len(value) <= MAX_MEMBERS and all(
            is_plain(k, depth + 1) and is_plain(v, depth + 1) for k, v in value.items()
        )
    if kind.__module__ == "numpy":
        return not getattr(getattr(value, "dtype", None), "hasobject", True)
    return issubclass(kind, type) and any(value is each for each in _CLASSES)


def is_tuple(kind: type) -> bool:
    """Tuples, also named ones: their members are read as those of any tuple."""
    return issubclass(kind, tuple) and kind.__iter__ is tuple.__iter__


def function(value: Any) -> Permitted | None:
    """Permission to call a function of torch's or Python's."""
    if any(value is each for each in _BUILTINS):
        return Permitted(value)
    kind = type(value)
    if kind is not types.BuiltinFunctionType and kind is not types.FunctionType:
        return None
    name: str = value.__name__
    if getattr(value, "__module__", None) == "math":
        return Permitted(value)
    if kind is types.FunctionType:
        known = any(
            value.__module__ == space.__name__ and vars(space).get(name) is value
            for space in (functional, torch.functional)
        )
        return Permitted(value) if known and not name.startswith("_") else None
    if name in _TORCH and any(value is each for each in vars(torch).values()):
        return Permitted(value)
    spaces = (torch, functional, torch._C._nn, torch.special, torch.linalg, torch.fft)
    known = any(
        value is vars(space).get(each)
        for space in spaces
        for each in (name, name.removeprefix(_base(space) + "_"))
    )
    return Permitted(value) if known and _is_operator(name) else None


def is_of_torch(module: nn.Module) -> bool:
    """Whether a module and all of its parts are torch's own, so that a call only computes.

    What draws random numbers or keeps statistics is refused when it does.
    """
    if _has_global_hooks():
        return False
    return all(
        is_module_of_torch(type(each))
        and not each._forward_hooks
        and not each._forward_pre_hooks
        and not each._backward_hooks
        and not each._backward_pre_hooks
        and "forward" not in each.__dict__
        for each in module.modules()
    )


def is_module_of_torch(kind: type) -> bool:
    """Whether a class is one of torch's modules."""
    return issubclass(kind, nn.Module) and kind.__module__.startswith(_MODULES)


_MODULES = "torch.nn.modules."
_has_global_hooks: Callable[[], bool] = nn.modules.module._has_any_global_hook


def _base(space: Any) -> str:
    return str(space.__name__).rpartition(".")[2]


def _is_operator(name: str) -> bool:
    if name.startswith("_") or name in _DENIED:
        return False
    return hasattr(torch.ops.aten, name)


def attribute(value: Any, name: str) -> Any:
    """An attribute that can be had without running anything; else unknown."""
    kind = type(value)
    if kind in TENSORS:
        return _of_tensor(value, name)
    if issubclass(kind, types.ModuleType):
        return vars(value).get(name, UNKNOWN)
    if issubclass(kind, type):
        return _of_class(value, name)
    if kind in (torch.finfo, torch.iinfo, slice, range, complex, float, int, torch.device):
        found = getattr(value, name, UNKNOWN)
        return UNKNOWN if callable(found) else found
    if name in _READING.get(kind, ()):
        return Permitted(getattr(value, name))
    if name in _CHANGING.get(kind, ()):
        return Permitted(getattr(value, name), value)
    if kind.__module__ == "torch.return_types" or kind is torch.Size:
        found = getattr(value, name, UNKNOWN)
        return found if type(found) in TENSORS else UNKNOWN
    return _of_instance(value, kind, name)


def _of_tensor(value: torch.Tensor, name: str) -> Any:
    if name in _TENSOR_ATTRIBUTES:
        return getattr(value, name)
    if name not in _TENSOR_METHODS and not _is_operator(name):
        return UNKNOWN
    found = getattr(value, name, UNKNOWN)
    if found is UNKNOWN or not callable(found):
        return UNKNOWN
    return Permitted(found, value if name.endswith("_") else None)


def _of_class(value: type, name: str) -> Any:
    found = _static(value, name)
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, classmethod):
        return types.MethodType(found.__func__, value)
    return found if _is_constant(found) or isinstance(found, types.FunctionType) else UNKNOWN


def _of_instance(value: Any, kind: type, name: str) -> Any:
    if "__getattribute__" in _own_names(kind):
        return UNKNOWN
    found = _static(kind, name)
    if isinstance(found, property):
        return UNKNOWN
    if type(found).__name__ == "_tuplegetter":
        return found.__get__(value, kind)
    if isinstance(found, types.MemberDescriptorType):
        try:
            return found.__get__(value, kind)
        except AttributeError:
            return UNKNOWN
    own = _own(value)
    if name in own:
        return own[name]
    if issubclass(kind, nn.Module):
        for space in ("_parameters", "_buffers", "_modules"):
            if name in own.get(space, ()):
                return own[space][name]
    if isinstance(found, types.FunctionType):
        return types.MethodType(found, value)
    if isinstance(found, staticmethod | classmethod):
        return _of_class(kind, name)
    return found if _is_constant(found) else UNKNOWN


def getter(value: Any, name: str) -> types.FunctionType | None:
    """The script's function behind a property, to be followed."""
    found = _static(type(value), name)
    if not isinstance(found, property) or "__getattribute__" in _own_names(type(value)):
        return None
    return found.fget if isinstance(found.fget, types.FunctionType) else None


def _is_constant(value: Any) -> bool:
    """Whether a class attribute is what an instance has by that name, too."""
    return value is not UNKNOWN and not hasattr(type(value), "__get__")


def _own(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _static(kind: type, name: str) -> Any:
    for base in type.__getattribute__(kind, "__mro__"):
        if name in vars(base):
            return vars(base)[name]
    return UNKNOWN


def _own_names(kind: type) -> set[str]:
    """Names that classes of the script's define."""
    found: set[str] = set()
    for base in type.__getattribute__(kind, "__mro__"):
        if base.__module__ not in ("builtins", "torch.nn.modules.module"):
            found.update(vars(base))
    return found


def unwrapped(value: types.FunctionType) -> types.FunctionType:
    """The script's function under a wrapper of torch's, such as `torch.no_grad()` puts on."""
    seen = 0
    while value.__code__.co_filename.startswith(_TORCH_FOLDER) and seen < 8:
        inner = value.__dict__.get("_torchdynamo_orig_callable", value.__dict__.get("__wrapped__"))
        if not isinstance(inner, types.FunctionType):
            break
        value, seen = inner, seen + 1
    return value


def has_no_grad(value: types.FunctionType) -> bool:
    """Whether a wrapper of torch's is that of `torch.no_grad()` or the like."""
    for cell in value.__closure__ or ():
        inner = cell.cell_contents
        cells = getattr(inner, "__closure__", None) or ()
        if any(isinstance(each.cell_contents, _NO_GRAD) for each in cells):
            return True
    return False


_NO_GRAD = (torch.no_grad, torch.inference_mode)
_TORCH_FOLDER = inspect.getfile(torch).rpartition("/")[0] + "/"


def method(kind: type, name: str) -> types.FunctionType | None:
    """A method that a class of the script's defines in Python."""
    found = _static(kind, name)
    return found if isinstance(found, types.FunctionType) else None
