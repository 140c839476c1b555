"""Puts wrappers round library functions, once per process, and takes them away without trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

from tuimon.train.taps.compiler import leave_alone

On = list[bool]  # one element: whether the wrapper does more than pass through
# (original function, its switch) -> the function that stands in its place
Wrap = Callable[[Callable[..., Any], On], Callable[..., Any]]


@dataclass
class _Patch:
    owner: Any
    name: str
    original: Callable[..., Any]
    wrapper: Callable[..., Any]
    on: On


class Patches:
    """The set of wrappers of this process. Used by the training thread only.

    A wrapper looks at its switch at every call, and passes through when it is off.

    A wrapper that somebody else has wrapped cannot be taken out; it stays as a pass-through and
    is used again by the next `install`.
    """

    def __init__(self) -> None:
        self._patches: list[_Patch] = []

    def install(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Wrap `owner.name`; nothing happens where there is no such function."""
        for patch in self._patches:
            if patch.owner is owner and patch.name == name:
                patch.on[0] = True
                return
        original = owner.__dict__.get(name)
        if not callable(original):
            return
        on = [True]
        wrapper = functools.wraps(original)(wrap(original, on))
        leave_alone(cast(FunctionType, wrapper).__code__, callees=False)
        setattr(owner, name, wrapper)
        self._patches.append(_Patch(owner, name, original, wrapper, on))

    def remove_all(self) -> None:
        """Put every original back; wrappers under a foreign one only pass through from now on."""
        left = []
        for patch in reversed(self._patches):
            patch.on[0] = False
            if patch.owner.__dict__.get(patch.name) is patch.wrapper:
                setattr(patch.owner, patch.name, patch.original)
            else:
                left.append(patch)
        self._patches = left

    @property
    def installed(self) -> int:
        """How many functions are wrapped or passed through."""
        return len(self._patches)
