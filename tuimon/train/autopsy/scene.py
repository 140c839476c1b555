"""Keeps what it takes to run the newest training forwards again, until their update is over.

Per forward: what the root was called with, the random streams it is known to draw from, autocast,
and the gradient that comes back to its output. One batch may live to the end of its update, but
none outlives a graph that no backward went through, as no update follows from it; in steps too
short to tell, a few may live that long.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tuimon.train.autopsy import streams
from tuimon.train.autopsy.names import flat_tensors
from tuimon.train.autopsy.rerun import read_autocast
from tuimon.train.autopsy.sites import Place, caller_place

if TYPE_CHECKING:
    from tuimon.train.autopsy.linemap import LineMap
    from tuimon.train.observer import Observer

TAP = "autopsy"
MAX_CALLS = 8  # forwards of one update that are kept; with accumulation the newest ones
MAX_CALLS_BYTES = 1 << 28  # inputs of all but the newest of them
MAX_OUTPUT_BYTES = 64 << 20  # of an output whose gradient is kept: logits can be large
LEARN_FORWARDS = 3  # of each root: which streams it draws from, and where it is called
LEARN_EVERY = 256  # forwards after which the streams are compared once more
# What is kept of a call costs some 3 µs, and the gradient of its output three times that, with cold
# caches several times as much: in steps shorter than these they would be felt.
SHORT_STEP_S = 2e-4  # nothing is kept
LEAN_FACTOR = 3  # in steps shorter than so many times that, the call is, but not the gradient
MAJORITY = 10  # short steps more than long ones, until steps are taken to be short
_Came = deque[tuple[torch.Tensor | None, ...]]
_DECIDED = (0, MAJORITY)
_NOTHING: dict[str, Any] = {}  # shared: never written to
_OUTPUT_NR = attrgetter("output_nr")
_ANY_AUTOCAST: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


class Call:
    """One training forward of a root module.

    Attributes:
        module: the root, weak.
        args, kwargs: what it was called with.
        versions: of the tensors among `args`, by position; tells whether they were written to.
        random: states of the process-wide streams when it began, as far as they were read.
        autocast: what was in force.
        generators: those that the script has registered, each with its state.
        place: the line that called it, once that is known.
        size: bytes of its inputs, once another forward has followed.
        came: for each tensor of the output, what the newest backward brought to its node.
        nodes: weak references to what only the nodes of the output hold.
    """

    __slots__ = (
        "_places",
        "args",
        "autocast",
        "came",
        "generators",
        "kwargs",
        "learning",
        "module",
        "nodes",
        "outer",
        "place",
        "random",
        "size",
        "versions",
    )

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module = weakref.ref(module)
        self.args = args
        self.kwargs = kwargs
        self.versions = [
            each._version if type(each) is torch.Tensor and not each.is_inference() else None
            for each in args
        ]
        self.random = _NOTHING
        self.autocast: Any = ()
        self.generators: Sequence[tuple[Any, Any]] = ()
        self.place: Place | None = None
        self.learning: dict[str, Any] | None = None
        self.outer: Call | None = None
        self.size = 0
        self.came: Sequence[_Came] = ()
        self.nodes: Sequence[weakref.ref[Any]] = ()
        self._places: Sequence[int] | None = None

    @property
    def was_modified(self) -> bool:
        """Whether an input was written to after the forward began."""
        return any(
            version is not None and each._version != version
            for version, each in zip(self.versions, self.args, strict=True)
        )

    @property
    def grads(self) -> list[torch.Tensor | None] | None:
        """Gradients that came back, one for each tensor of the output; None when not kept."""
        places = self._places
        if places is None:
            return None
        pairs = zip(self.came, places, strict=True)
        return [came[0][place] if came else None for came, place in pairs]

    def listen(
        self, tensors: Sequence[torch.Tensor], gone: Callable[[weakref.ref[Any]], None]
    ) -> None:
        """Keep the gradients of the output, and notice when its graph goes without a backward.

        What a node calls is a method of C: a function of Python costs twice as much in there.
        """
        keeps = sum(map(_size, tensors)) <= MAX_OUTPUT_BYTES
        came: list[_Came] = []
        nodes: list[weakref.ref[Any]] = []
        for tensor in tensors:
            arrived: _Came = deque(maxlen=1)
            came.append(arrived)
            if (node := tensor.grad_fn) is not None:
                hook = arrived.append if keeps else _noticing(arrived)
                node.register_prehook(hook)
                nodes.append(weakref.ref(hook, gone))
        self.came, self.nodes = came, nodes
        self._places = [*map(_OUTPUT_NR, tensors)] if keeps else None


def _noticing(came: _Came) -> Callable[[Any], None]:
    """A hook that notes that a backward came, and keeps nothing of it."""

    def notice(_: Any) -> None:
        came.append(())

    return notice


class Scenes:
    """The forwards that the next update follows from. Used by the training thread only.

    Attributes:
        calls: in order, at most `MAX_CALLS`.
        dropped: forwards of this update that are no longer kept.
        wanted: the process-wide streams that forwards have been seen to draw from.
        generators: random streams of their own that the script has registered.
        keeps: whether anything is kept at all; neither with autopsies off nor in short steps.
        open: the innermost forward that is running.
        is_short: steps are so short that nothing is kept.
        is_lean: steps are so short that the gradient of the output is not kept.
    """

    def __init__(self, observer: Observer, lines: LineMap) -> None:
        self._lines = lines
        self._active = True
        self.calls: list[Call] = []
        self.dropped = 0
        self.wanted: tuple[str, ...] = ()
        self.keeps = True
        self.generators: list[Any] = []
        self._observer = observer
        self.open: Call | None = None
        self._places: dict[int, Place | None] = {}
        self._met: dict[int, int] = {}
        self.is_short = self.is_lean = False
        self._short_steps = self._lean_steps = 0
        self._suspected = False
        guard = observer.boundary.guard
        self.enter = observer.boundary.within(TAP, self._enter)
        self.leave = guard(TAP, self._leave)
        self.end_lines = guard(TAP, lines.after_forward)

    def switch(self, *, on: bool) -> None:
        """Keep scenes, or none at all."""
        self._active = on
        self.keeps = on and not self.is_short

    def suspect(self) -> None:
        """Something was not finite: from now on a scene is worth its price, however short steps."""
        self._suspected = True
        self.is_short = self.is_lean = False
        self.keeps = self._active

    def note_step(self, step_s: float | None) -> None:
        """After an update: nothing of it is kept; steps too short to pay for it keep nothing."""
        if self.calls:
            self.calls = []
            self.open = None
            self.dropped = 0
        if step_s is None or self._suspected:
            return
        # The median decides: short steps less long ones among the newest, which no few can turn.
        if step_s < LEAN_FACTOR * SHORT_STEP_S:
            self._lean_steps += self._lean_steps < MAJORITY
        else:
            self._lean_steps -= self._lean_steps > 0
        if step_s < SHORT_STEP_S:
            self._short_steps += self._short_steps < MAJORITY
        else:
            self._short_steps -= self._short_steps > 0
        if self._lean_steps in _DECIDED:
            self.is_lean = self._lean_steps == MAJORITY
        if self._short_steps in _DECIDED:
            self.is_short = self._short_steps == MAJORITY
            self.keeps = self._active and not self.is_short

    def drop(self) -> None:
        """Keep nothing any longer."""
        self.note_step(None)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward of a root begins."""
        lines = self._lines
        if lines.due or lines.stuck:
            lines.before_forward()
        if not self.keeps:
            return
        call = Call(module, args, kwargs)
        calls = self.calls
        if calls:
            self._make_room(calls)
        calls.append(call)
        key = id(module)
        met = self._met[key] = self._met.get(key, 0) + 1
        if met <= LEARN_FORWARDS or met % LEARN_EVERY == 0:
            call.learning = {name: streams.read(name) for name in streams.PROCESS_WIDE}
            self._places[key] = caller_place()
        if self.wanted:
            call.random = {name: streams.read(name) for name in self.wanted}
        if self.generators:
            call.generators = [(each, streams.state_of(each)) for each in self.generators]
        call.place = self._places.get(key)
        if _ANY_AUTOCAST():
            call.autocast = read_autocast()
        call.outer, self.open = self.open, call

    def _leave(self, module: nn.Module, output: Any) -> None:
        """It has returned."""
        call = self.open
        if call is None or call.module() is not module:
            return
        self.open, call.outer = call.outer, None
        if output is None and sys.exc_info()[0] is not None:
            self._let_go(call)  # it raised
            return
        if call.learning is not None:
            self._learn(call)
        if self.is_lean:
            return
        if type(output) is torch.Tensor:
            if output.grad_fn is not None:
                call.listen((output,), self._gone)
            return
        with torch._C.DisableTorchFunction():  # an output may be of a class of the script's
            tensors = flat_tensors(output)
            if any(tensor.grad_fn is not None for tensor in tensors):
                call.listen(tensors, self._gone)

    def _gone(self, node: weakref.ref[Any]) -> None:
        """A node of the output of a forward is gone, on whatever thread."""
        for call in tuple(self.calls):
            if any(call.came):  # a backward came to it: kept until the update is over
                continue
            if node in call.nodes and all(each() is None for each in call.nodes):
                self._let_go(call)

    def _let_go(self, call: Call) -> None:
        """No update follows from this forward."""
        with contextlib.suppress(ValueError):
            self.calls.remove(call)

    def _learn(self, call: Call) -> None:
        """See which streams the forward has drawn from; they are read at every one from now on."""
        before, call.learning = call.learning, None
        for name, state in (before or {}).items():
            if name not in self.wanted and not streams.is_same(state, streams.read(name)):
                self.wanted += (name,)
                call.random = {**call.random, name: state}

    def _make_room(self, calls: list[Call]) -> None:
        """Another forward of the same update: the oldest give way."""
        newest = calls[-1]
        newest.size = sum(_size(each) for each in newest.args if type(each) is torch.Tensor)
        kept = sum(each.size for each in calls)
        while calls and (len(calls) >= MAX_CALLS or kept > MAX_CALLS_BYTES):
            kept -= calls.pop(0).size
            self.dropped += 1


class AfterForward:
    """Forward hook of a root module, also called when it raises: the end of a forward.

    Copies and pickles to an inert callable of the standard library, as its counterpart does.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        # First, and alone: traced into a compiled region this must stay free of effects.
        if torch.compiler.is_compiling():
            return
        observer = self._observer
        scenes = observer.scenes
        window = observer.examiner.lines.window
        if (scenes.open is None and window is None) or get_ident() != observer.thread:
            return
        if scenes.open is not None:
            scenes.leave(module, output)
        if window is not None:
            scenes.end_lines()

    def __deepcopy__(self, memo: Any) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
