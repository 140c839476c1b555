"""Puts back, bit for bit, what a re-run of the user's modules may touch.

Parameters and buffers are exchanged for stand-ins, so that the real ones, their gradients and
their hooks are never met; everything else that modules can reach is noted before and put back
after: plain attributes, containers, closures, class attributes, generators, tensors, arrays.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import nn
from torch.nn.modules import module as _torch_module

from tuimon.train.autopsy import foreign, putback, streams
from tuimon.train.autopsy.mentions import forward_of, mentioned, names_in
from tuimon.train.autopsy.namespaces import Namespaces
from tuimon.train.autopsy.nowhere import NOWHERE
from tuimon.train.autopsy.putback import CannotKeep
from tuimon.train.autopsy.stand_ins import PLAIN_TENSORS, TENSORS_LEFT, StandIns

__all__ = ["TENSORS_LEFT", "CannotKeep", "Kept"]

MAX_PLACES = 200_000  # visited for one re-run, about 0.2 s

GLOBALS_LEFT = "not every global variable of the script was looked after"
ATTRIBUTES_LEFT = "not all that the modules hold and their forward does not name was looked after"
CACHE_GREW = "a cache of a function of the script's was added to"

_GLOBAL_HOOKS = [
    value
    for name, value in vars(_torch_module).items()
    if name.startswith("_global_") and isinstance(value, dict)
]


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
        self._stand_ins = StandIns()
        self.notes = self._stand_ins.notes
        self._seen: dict[int, Any] = {}  # holds what was met, so that ids stay theirs
        self._undo: list[putback.Undo] = []
        self._containers: list[dict[Any, Any] | list[Any]] = []
        self._single: list[tuple[Any, Callable[[Any], None]]] = []  # (content, puts another there)
        self._caches: list[tuple[Any, int]] = []
        self._places = 0
        self._names = Namespaces(self._visit_all, self._undo)
        self._forwards: set[type] = set()
        self._named = {"forward"}  # by the code of forwards and hooks
        self._attributes: list[tuple[str, Any]] = []  # of modules
        listed = [module for root in roots for module in root.modules()]
        hung = [each for module in listed for each in self._stand_ins.adopt(module)]
        self._is_strict = True  # what a forward uses must be put back, or nothing is run
        self._looks_into = True  # also into what a library has made
        self._visit_all([*listed, *hung, *also, *_GLOBAL_HOOKS])
        self._visit_attributes()
        self._is_strict = self._looks_into = False
        self._names.visit(dict.fromkeys(map(type, listed)))
        self._containers += self._names.globals
        if not self._names.all_seen:
            self._stand_ins.note(GLOBALS_LEFT)

    @property
    def own_bytes(self) -> int:
        """Size of all parameters and buffers."""
        return sum(map(putback.bytes_of, self._stand_ins.own.values()))

    def put_stand_ins(self) -> None:
        """Exchange every parameter and buffer for a copy of itself, wherever modules hold it."""
        self._stand_ins.make()
        other_of = self._stand_ins.other
        for container in self._containers:
            if isinstance(container, dict):
                for name, value in list(dict.items(container)):
                    if (other := other_of(value)) is not value:
                        dict.__setitem__(container, name, other)
            else:
                for index, value in enumerate(list.__iter__(container)):
                    if (other := other_of(value)) is not value:
                        list.__setitem__(container, index, other)
        for content, put in self._single:
            if (other := other_of(content)) is not content:
                put(other)

    def put_back(self) -> None:
        """Make everything what it was. Safe to call again."""
        failed: Exception | None = None
        for undo in self._undo:
            try:
                undo()
            except Exception as error:  # the rest must be put back all the same
                failed = failed or error
        for cache, misses in self._caches:
            if cache.cache_info().misses != misses:
                self._stand_ins.note(CACHE_GREW)
        if failed is not None:
            raise failed

    # --- the walk ---------------------------------------------------------------------------------

    def _visit_all(self, values: Iterable[Any]) -> None:
        """Depth first, without recursion: what is reached may be deep."""
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            kind = type(value)
            if kind in foreign.SCALARS or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            self._places += 1
            if self._places > MAX_PLACES:
                raise CannotKeep("its modules reach more objects than can be looked after")
            waiting.extend(self._keep(value, kind))

    def _keep(self, value: Any, kind: type) -> Iterable[Any]:
        """Note how one object is put back; what is to be visited from there."""
        if kind in foreign.BARE:  # first, and without further questions: there may be many
            return self._keep_container(value, kind) or ()
        if self._is_strict and (reason := foreign.cannot_go_back(kind)):
            raise CannotKeep(reason)
        if issubclass(kind, torch.Tensor):
            return self._stand_ins.keep(value, self._undo.append, strict=self._is_strict)
        if (found := self._keep_container(value, kind)) is not None:
            return [*found, *self._keep_object(value, kind)]
        if streams.is_generator(value):
            if not foreign.is_drawn_by_nobody(value):
                self.generators.append(value)
            return ()
        if (found := self._keep_callable(value, kind)) is not None:
            return found
        if (held := putback.memory(value, kind)) is not None:
            self._stand_ins.pay(held[1])
            self._undo.append(held[0])
            return ()
        return self._keep_other(value, kind)

    def _keep_other(self, value: Any, kind: type) -> Iterable[Any]:
        if issubclass(kind, type):
            self._names.meet_class(value)
        elif issubclass(kind, threading.local):
            return (value.__dict__,)
        elif issubclass(kind, WeakKeyDictionary | WeakValueDictionary):
            return (value.data,)
        elif kind.__module__ == "multiprocessing.sharedctypes" and hasattr(value, "_obj"):
            return (value._obj,)
        elif issubclass(kind, io.IOBase):
            self._keep_file(value)
        elif foreign.is_of_the_loop(kind):
            self._undo += putback.of_the_loop(value)
        elif self._stand_ins.exchange(value, kind) or foreign.is_foreign(kind):
            return ()
        elif self._looks_into or not foreign.comes_installed(kind):
            return self._keep_object(value, kind)
        return ()  # no forward names it, and it is a library's

    def _keep_container(self, value: Any, kind: type) -> Iterable[Any] | None:
        """What a container holds, as far as it is not exchanged; None for anything else."""
        if issubclass(kind, dict | list):
            self._containers.append(value)
            is_dict = issubclass(kind, dict)
            self._undo.append((putback.dictionary if is_dict else putback.sequence)(value))
            found = list(dict.values(value) if is_dict else list.__iter__(value))
            self._cut(found)
            return [each for each in found if not self._stand_ins.has(each)]
        if issubclass(kind, tuple):
            found = list(tuple.__iter__(value))
            self._cut(found)
            return found
        if issubclass(kind, deque | set):
            self._undo.append(
                (putback.members if issubclass(kind, set) else putback.sequence)(value)
            )
            return list(value)
        if issubclass(kind, frozenset):
            return list(value)
        if (numpy := sys.modules.get("numpy")) is not None and issubclass(kind, numpy.ndarray):
            return self._stand_ins.keep_array(value, self._undo)
        return None

    def _cut(self, found: list[Any]) -> None:
        for each in found:
            if type(each) in PLAIN_TENSORS:
                self._stand_ins.cut(each)

    def _keep_callable(self, value: Any, kind: type) -> Iterable[Any] | None:
        if issubclass(kind, types.FunctionType):
            return self._keep_function(value)
        if issubclass(kind, types.MethodType):
            return (value.__func__, value.__self__)
        if issubclass(kind, functools.partial):
            return (value.func, value.args, value.keywords)
        if foreign.is_cache(kind):
            self._caches.append((value, value.cache_info().misses))
            return (value.__wrapped__,)
        return None

    def _keep_function(self, value: types.FunctionType) -> Iterable[Any]:
        found: list[Any] = [value.__defaults__, value.__kwdefaults__, value.__dict__]
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                self._undo.append(functools.partial(putback.empty, cell))
                continue
            self._keep_single(content, functools.partial(putback.fill, cell))
            found.append(content)
        if not foreign.is_installed(value.__globals__):
            self._names.meet_globals(value.__globals__)
            if self._is_strict:
                self._named |= names_in(value.__code__)
                found.extend(mentioned(value))
        return found

    def _keep_object(self, value: Any, kind: type) -> Iterable[Any]:
        found: list[Any] = []
        if issubclass(kind, nn.Module):
            if self._is_strict:
                found += self._stand_ins.adopt(value)
                if kind not in self._forwards:
                    self._forwards.add(kind)
                    for function in forward_of(kind):
                        self._named |= names_in(function.__code__)
                        found.append(function)
            if foreign.is_wrapper(kind):
                return found + [vars(value)[f"_{each}"] for each in _OF_MODULES]
            found += self._keep_attributes(vars(value))
        else:
            with contextlib.suppress(AttributeError):
                found.append(object.__getattribute__(value, "__dict__"))
        self._names.meet_class(kind)
        for slot in foreign.slots(kind):
            try:
                content = slot.__get__(value, kind)
            except AttributeError:
                self._undo.append(functools.partial(putback.empty_slot, slot, value))
                continue
            self._keep_single(content, functools.partial(putback.fill_slot, slot, value))
            found.append(content)
        return found

    def _keep_attributes(self, values: dict[str, Any]) -> Iterable[Any]:
        """Of a module: what every module has at once, the others by their names."""
        self._keep_container(values, dict)
        self._attributes += [(n, v) for n, v in values.items() if n not in _OF_EVERY_MODULE]
        return [value for name, value in values.items() if name in _OF_EVERY_MODULE]

    def _visit_attributes(self) -> None:
        """Those that no forward and no hook names, such as the way back to a trainer, come last.

        They are put back as far as that goes, and keep nothing from being run.
        """
        names = self._named
        while named := [pair for pair in self._attributes if _is_named(pair[0], names)]:
            self._attributes = [pair for pair in self._attributes if not _is_named(pair[0], names)]
            self._visit_all([value for _, value in named])
        self._is_strict = False
        try:
            self._visit_all([value for _, value in self._attributes])
        except CannotKeep:
            self._stand_ins.note(ATTRIBUTES_LEFT)

    def _keep_single(self, content: Any, put: Callable[[Any], None]) -> None:
        self._single.append((content, put))
        self._undo.append(functools.partial(put, content))

    def _keep_file(self, value: io.IOBase) -> None:
        if any(value is each for each in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
            self._stand_ins.put(value, NOWHERE)
        elif self._is_strict and (undo := putback.file(value)) is not None:
            self._undo.append(undo)


def _is_named(name: str, names: set[str]) -> bool:
    return name in names or name.lstrip("_") in names


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_OF_MODULES = ("parameters", "buffers", "modules")
