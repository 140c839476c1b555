"""Follows the script's bytecode on a namespace of its own; what it cannot follow is unknown.

Nothing of the script's is called: its functions are followed in turn, and only what
`permits` names runs natively.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

# The first two fill `activation.ACTS`.
from tuimon.train.autopsy import constructs, opcodes, permits  # noqa: F401
from tuimon.train.autopsy.activation import Frame
from tuimon.train.autopsy.bytecode import CannotReplay
from tuimon.train.autopsy.ownership import Ownership
from tuimon.train.autopsy.permits import Permitted, is_plain
from tuimon.train.autopsy.shadow import NULL, UNKNOWN, Around, Cells, Each, Made, Scope
from tuimon.train.autopsy.sites import Place, is_foreign

MAX_STEPS = 200_000  # instructions of one replay
MAX_DEPTH = 12  # functions inside of each other
_BACKWARDS = ("backward", "grad")
_GRAD_MODES = (torch.no_grad, torch.inference_mode)
_VIEWS: tuple[type, ...] = (
    zip,
    enumerate,
    reversed,
    type({}.items()),
    type({}.keys()),
    type({}.values()),
)
_SKIPPED_CODE = 0x20 | 0x80 | 0x200  # generators, coroutines and their like


class Interpreter:
    """One replay.

    Attributes:
        owned: containers that the replay has made, by identity.
        changed: names of attributes that the script has stored to meanwhile.
        asked: of these a backward was begun, as far as they are known.
        module: the scope of a module's body that is replayed.
    """

    def __init__(
        self,
        ownership: Ownership,
        on_value: Callable[[Any], None],
        tick: Callable[[], None],
        apart: frozenset[int] = frozenset(),
        answer: Callable[..., Any] | None = None,
    ) -> None:
        self.owned: dict[int, Any] = {}
        self.changed: set[str] = set()
        self.asked: list[torch.Tensor] = []
        self._stored: dict[str, list[tuple[Any, Any]]] = {}  # attribute -> (owner, value)
        self.module: Scope | None = None
        self._ownership = ownership
        self._on_value = on_value
        self._tick = tick
        self._apart = apart
        self._answer = answer
        self._running: list[Frame] = []
        self._scopes: list[Scope] = []
        self._steps = 0

    @property
    def place(self) -> Place | None:
        """The line that is being followed."""
        return self._running[-1].place if self._running else None

    def run(self, scope: Scope, stack: list[Any] | None = None) -> Any:
        """Follow one function until it returns, or up to where the living one is."""
        if len(self._running) >= MAX_DEPTH:
            return UNKNOWN
        self._scopes.append(scope)
        frame = Frame(self, scope, stack)
        self._running.append(frame)
        try:
            return frame.run()
        finally:
            self._running.pop()

    def close(self) -> None:
        """Let go of everything; values and functions may hold each other in circles."""
        for scope in self._scopes:
            scope.names.clear()
            scope.stack = []
            scope.live = None
        self._scopes.clear()
        self.owned.clear()
        self._stored.clear()
        self.asked.clear()
        self.module = None

    def step(self) -> None:
        """Another instruction."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise CannotReplay("the code before the loss is too long to be followed")
        if self._steps % 64 == 0:
            self._tick()

    def own(self, container: Any) -> Any:
        """A container that the replay may change, because it has made it."""
        self.owned[id(container)] = container
        return container

    def owns(self, value: Any) -> bool:
        """Whether a value may be changed in place."""
        if type(value) in permits.TENSORS:
            return self._ownership.owns(value)
        return id(value) in self.owned

    def taint(self, value: Any) -> None:
        """What a value of the replay's own holds is not known any longer."""
        self.owned.pop(id(value), None)
        for frame in self._running:
            frame.taint(value)

    def store_attribute(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name = value`; the script's own object stays as it is."""
        if owner is UNKNOWN:
            self.change(name)
            return
        known = [each for each in self._stored.get(name, ()) if each[0] is not owner]
        self._stored[name] = [*known, (owner, value)]

    def change(self, name: str) -> None:
        """Some object's attribute of this name is not known any longer."""
        self.changed.add(name)
        self._stored.pop(name, None)

    # --- calls ------------------------------------------------------------------------------------

    def native(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what is permitted; unknown where an operand is, or where it fails."""
        if not all(map(is_plain, args)) or not all(map(is_plain, kwargs.values())):
            return UNKNOWN
        try:
            value = function(*args, **kwargs)
        except Exception:  # also `Refused`
            return UNKNOWN
        if type(value) in _VIEWS:
            value = list(value)
        if type(value) in (list, dict):
            self.own(value)
        self._on_value(value)
        return value

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call anything, as far as that can be done."""
        kind = type(function)
        if function is UNKNOWN or function is NULL:
            return UNKNOWN
        if kind is Permitted:
            return self._permitted(function, args, kwargs)
        if kind is Made:
            return self._follow_made(function, args, kwargs)
        if (permitted := permits.function(function)) is not None:
            return self._permitted(permitted, args, kwargs)
        if kind is types.MethodType:
            return self.call(function.__func__, (function.__self__, *args), kwargs)
        if kind is functools.partial:
            given = (*function.args, *args)
            return self.call(function.func, given, {**function.keywords, **kwargs})
        if kind is types.FunctionType:
            inner = permits.unwrapped(function)
            if inner is not function and permits.has_no_grad(function):
                with torch.no_grad():
                    return self._follow(inner, args, kwargs)
            return self._follow(inner, args, kwargs)
        if issubclass(kind, type):
            return self._context(function, args, kwargs)
        if issubclass(kind, nn.Module):
            return self._call_module(function, args, kwargs)
        method = permits.method(kind, "__call__")
        return UNKNOWN if method is None else self._follow(method, (function, *args), kwargs)

    def _permitted(
        self, permitted: Permitted, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        owner = permitted.owner
        if owner is not None and not self.owns(owner):
            # It was done when the script did it.
            return owner if type(owner) in permits.TENSORS else UNKNOWN
        if type(owner) in (list, dict):
            permitted.function(*args, **kwargs)  # may hold what is unknown
            return None
        return self.native(permitted.function, *args, **kwargs)

    def _context(self, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Autocast, modules and modes without a graph are what matters of torch's classes."""
        if kind in _GRAD_MODES and not args and not kwargs:
            return kind()
        is_known = issubclass(kind, torch.autocast) or permits.is_module_of_torch(kind)
        if not is_known or not all(map(is_plain, [*args, *kwargs.values()])):
            return UNKNOWN
        try:
            return kind(*args, **kwargs)
        except Exception:
            return UNKNOWN

    def enter(self, value: Any) -> AbstractContextManager[Any] | None:
        """Begin a `with` of autocast's or without a graph; every other one is passed through."""
        if isinstance(value, _GRAD_MODES):
            return torch.no_grad()
        if not isinstance(value, torch.autocast):
            return None
        # Without the cache: what is cast here must not be met by the script.
        return torch.autocast(
            value.device, value.fast_dtype, enabled=value._enabled, cache_enabled=False
        )

    def _call_module(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A module of the script's: a watched model, or one that is no part of any."""
        own = module.__dict__
        hooked = own.get("_forward_hooks") or own.get("_forward_pre_hooks")
        forward = permits.method(type(module), "forward")
        if id(module) in self._apart:
            return UNKNOWN if self._answer is None else self._answer(module, args, kwargs)
        if permits.is_of_torch(module):
            return self.native(module, *args, **kwargs)
        if hooked or forward is None or "forward" in own:
            return UNKNOWN
        return self._follow(forward, (module, *args), kwargs)

    def follow(self, function: types.FunctionType, args: tuple[Any, ...]) -> None:
        """Follow a function of the script's from its beginning."""
        self._follow(function, args, {})

    def _follow(
        self, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        code = function.__code__
        if is_foreign(code.co_filename):
            if function.__name__ in _BACKWARDS:
                self.asked += [each for each in args if type(each) is torch.Tensor]
            return UNKNOWN
        outer = Cells(code, function.__closure__)
        scope = Scope(code, function.__globals__, outer)
        defaults = function.__defaults__ or ()
        return self._enter(scope, args, kwargs, defaults, function.__kwdefaults__ or {})

    def _follow_made(self, made: Made, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = Scope(made.code, made.scope.namespace, Around(made.scope))
        return self._enter(scope, args, kwargs, made.defaults, made.kwdefaults)

    def _enter(
        self,
        scope: Scope,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        defaults: tuple[Any, ...],
        kwdefaults: Mapping[str, Any],
    ) -> Any:
        code = scope.raw
        scope.module = self.module
        if code.co_flags & _SKIPPED_CODE:
            return UNKNOWN
        bound = bind(code, args, kwargs, defaults, kwdefaults)
        if bound is None:
            return UNKNOWN
        scope.names.update(bound)
        try:
            return self.run(scope)
        except CannotReplay:
            return UNKNOWN

    # --- attributes and items ---------------------------------------------------------------------

    def attribute(self, value: Any, name: str) -> Any:
        """An attribute, where nothing of the script's has to run for it."""
        for owner, stored in self._stored.get(name, ()):
            if owner is value:
                return stored
        if name == "backward" and type(value) in permits.TENSORS:
            self.asked.append(value)
        if name == "scale" and isinstance(value, torch.amp.GradScaler):
            return Permitted(_same)  # the scale is no part of the loss
        if value is UNKNOWN or name in self.changed:
            return UNKNOWN
        if type(value) is Made:
            return UNKNOWN
        getter = permits.getter(value, name)
        if getter is not None:
            return self._follow(getter, (value,), {})
        try:
            return permits.attribute(value, name)
        except Exception:
            return UNKNOWN

    def item(self, value: Any, key: Any) -> Any:
        """`value[key]`."""
        if value is UNKNOWN or key is UNKNOWN:
            return UNKNOWN
        kind = type(value)
        if type(key) in (int, slice) and (kind is list or permits.is_tuple(kind)):
            try:
                found = value[key]
            except (IndexError, TypeError, ValueError):
                return UNKNOWN
            self._on_value(found)
            return self.own(found) if kind is list and type(key) is slice else found
        if issubclass(kind, dict) and permits.method(kind, "__getitem__") is None:
            if type(key) not in (str, int, bool, float, tuple, bytes) or not is_plain(key):
                return UNKNOWN
            return dict.get(value, key, UNKNOWN)
        if is_plain(value):
            return self.native(operator.getitem, value, key)
        method = permits.method(kind, "__getitem__")
        return UNKNOWN if method is None else self._follow(method, (value, key), {})

    def iterate(self, value: Any) -> Any:
        """An iterator over what is wholly there; nothing of the script's is advanced."""
        kind = type(value)
        if kind is Each:
            return value
        if kind in (list, dict, range, str, set) or permits.is_tuple(kind):
            return Each(list(value)) if len(value) <= permits.MAX_MEMBERS else UNKNOWN
        if kind in permits.TENSORS and value.dim() and len(value) <= permits.MAX_MEMBERS:
            members = self.native(torch.unbind, value)
            return UNKNOWN if members is UNKNOWN else Each(list(members))
        return UNKNOWN


def _same(value: Any) -> Any:
    return value


def bind(
    code: types.CodeType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    defaults: tuple[Any, ...],
    kwdefaults: Mapping[str, Any],
) -> dict[str, Any] | None:
    """What the parameters of a function hold when it is called so; None where it cannot be."""
    count, names = code.co_argcount, code.co_varnames
    bound: dict[str, Any] = dict(zip(names[:count], args, strict=False))
    at = count + code.co_kwonlyargcount
    if code.co_flags & 0x04:
        bound[names[at]] = tuple(args[count:])
        at += 1
    elif len(args) > count:
        return None
    rest: dict[str, Any] = {}
    parameters = names[: count + code.co_kwonlyargcount]
    for name, value in kwargs.items():
        if name in bound or (name not in parameters and not code.co_flags & 0x08):
            return None
        (bound if name in parameters else rest)[name] = value
    if code.co_flags & 0x08:
        bound[names[at]] = rest
    first = count - len(defaults)
    for name, value in zip(names[first:count], defaults, strict=True):
        bound.setdefault(name, value)
    for name, value in kwdefaults.items():
        bound.setdefault(name, value)
    return bound if all(name in bound for name in parameters) else None
