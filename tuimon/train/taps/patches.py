"""Puts wrappers round library functions, once per process, and takes them away without trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# original function -> function that stands in its place
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class _Patch:
    owner: Any
    name: str
    original: Callable[..., Any]
    wrapper: Callable[..., Any]
    on: list[bool]  # one element, read by the wrapper at every call


class Patches:
    """The set of wrappers of this process. Used by the training thread only.

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
        active = wrap(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return active(*args, **kwargs) if on[0] else original(*args, **kwargs)

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
