"""The outputs of the modules that breakpoints name, forward by forward, until an update is judged.

Hooks live for one training forward, so that evaluations and everything else never meet one.
"""

from __future__ import annotations

import functools
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

import torch
from torch import nn

from tuimon.model.conditions import covers
from tuimon.model.samples import Activation
from tuimon.train.layers import unwrap
from tuimon.train.samples.activations import ForwardWatch, open_modules

if TYPE_CHECKING:
    from tuimon.train.observer import Observer

TAP = "breakpoints"
MAX_MODULES = 64  # hooked in one forward
MAX_SEEN = 4096  # outputs between two updates, of many small batches


class Outputs:
    """Used by the training thread only.

    Attributes:
        wanted: some module is named.
        spent_s: what the hooks have cost and nobody has accounted for.
    """

    def __init__(self, observer: Observer) -> None:
        self.wanted = False
        self.spent_s = 0.0
        self._observer = observer
        self._patterns: list[str] = []
        self._watches: dict[int, ForwardWatch] = {}
        self._seen: deque[Activation] = deque(maxlen=MAX_SEEN)

    def follow(self, patterns: list[str]) -> None:
        """Look at these modules from the next forward on."""
        self._patterns = patterns
        self.wanted = bool(patterns)
        if not patterns:
            for watch in self._watches.values():
                watch.take_off()
            self._watches.clear()
            self._seen.clear()

    def before_forward(self, root: nn.Module) -> None:
        """A training forward begins."""
        if torch._C._get_tracing_state() is not None:
            return
        watch = self._watches.get(id(root))
        if watch is not None:
            if watch.is_open:
                return  # a forward inside itself
            self._fold(watch)
        began_s = time.perf_counter()
        observer = self._observer
        guard = functools.partial(observer.boundary.guard, TAP)
        watch = self._watches[id(root)] = ForwardWatch(time.perf_counter, guard)
        prefix = next((p for p, model in observer.roster.roots() if model is root), "")
        chosen = named_modules(root, prefix, self._patterns)
        watch.put_on(root, chosen, step=observer.roster.next_step(), drawn="")
        self.spent_s += time.perf_counter() - began_s

    def seen(self) -> list[Activation]:
        """Everything since the last `clear`."""
        for watch in self._watches.values():
            self._fold(watch)
        self._watches.clear()
        return list(self._seen)

    def clear(self) -> None:
        """An update was judged."""
        self._seen.clear()

    def _fold(self, watch: ForwardWatch) -> None:
        watch.take_off()
        self._seen.extend(watch.activations())
        self.spent_s += watch.spent_s


def named_modules(root: nn.Module, prefix: str, patterns: list[str]) -> list[tuple[str, nn.Module]]:
    """(path, module) of what is named and may be looked at."""
    found = []
    for path, module in open_modules(unwrap(root), Counter(), leaves=False):
        name = (prefix + path).rstrip(".")
        if any(names_output(pattern, name) for pattern in patterns):
            found.append((name, module))
    return found[:MAX_MODULES]


def names_output(pattern: str, name: str) -> bool:
    """Whether exactly this module is meant: "encoder" is its own output, not those inside it."""
    return covers(pattern, name) if "*" in pattern or "?" in pattern else pattern == name
