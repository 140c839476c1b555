"""Replays the loss code of the script: its frame is followed, its models run for it.

What engine F follows to find a value is followed here to compute the loss again, with its graph.
None of the script's functions is called but the forwards of its models, inside the sandbox.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from tuimon.train.autopsy import bytecode, looks, permits, streams
from tuimon.train.autopsy.bytecode import CannotReplay
from tuimon.train.autopsy.frames import frames_of_script, is_watched_by_script
from tuimon.train.autopsy.interpreter import Interpreter
from tuimon.train.autopsy.names import flat_tensors
from tuimon.train.autopsy.ownership import Ownership
from tuimon.train.autopsy.permits import Permitted, is_plain
from tuimon.train.autopsy.scene import Call
from tuimon.train.autopsy.shadow import UNKNOWN, Scope, locals_of
from tuimon.train.layers import unwrap
from tuimon.train.taps.compiler import leave_alone
from tuimon.train.trials.changes import Change
from tuimon.train.trials.replaying import (
    Outcome,
    Replay,
    Roots,
    first_size,
    given,
    no_tensors,
    replayed,
)

CLOSE = 1e-3  # relative: as near as a loss computed again comes, where modules keep averages
_GRAD_MODES: tuple[type, ...] = (torch.no_grad, torch.enable_grad, torch.inference_mode)


@dataclass(frozen=True)
class Start:
    """A place from which a frame of the script may be followed to where it is."""

    code: CodeType
    namespace: Mapping[str, Any]
    live: Mapping[str, Any]
    last: int
    index: int

    def scope(self) -> Scope:
        """The frame, to be followed anew."""
        scope = Scope(self.code, self.namespace, {})
        scope.live, scope.last, scope.start = self.live, self.last, self.index
        return scope


def starts() -> Iterator[Start]:
    """Where to begin, the innermost frame and loop first; call it from where the script waits."""
    if not bytecode.is_readable() or is_watched_by_script():
        return
    frames = list(frames_of_script())
    try:
        for frame in frames:
            try:
                code = bytecode.read(frame.f_code)
                live = locals_of(frame)
                last = code.index_at(frame.f_lasti)
            except CannotReplay:
                continue
            for index in dict.fromkeys([*(loop.head for loop in code.around(last)), 0]):
                yield Start(frame.f_code, frame.f_globals, live, last, index)
    finally:
        frames.clear()


class FrameStage:
    """The script's own way from the batch to its loss.

    Attributes:
        unused: kept forwards that the newest replay did not need.
    """

    def __init__(
        self,
        start: Start,
        calls: Sequence[Call],
        roots: Roots,
        *,
        scale: float | None,
        expired: Callable[[], bool],
    ) -> None:
        self._start = start
        self._calls = list(calls)
        self._roots = roots
        self._scale = scale or 1.0
        self._expired = expired
        self.unused = 0

    def later(self) -> FrameStage:
        """The same with the newest of the kept forwards: earlier ones led to other losses."""
        calls = self._calls[self.unused :]
        return FrameStage(self._start, calls, self._roots, scale=self._scale, expired=self._expired)

    @property
    def batch(self) -> int:
        return first_size((self._calls[-1].args, self._calls[-1].kwargs)) if self._calls else 0

    def play(self, change: Change) -> Outcome:
        generators = [each for call in self._calls[:1] for each in call.generators]
        states = self._calls[0].random if self._calls else {}
        return replayed(
            self._roots,
            change,
            lambda replay: self._run(replay, change),
            random_states=states,
            registered=generators,
            also=no_tensors([(call.args, call.kwargs) for call in self._calls]),
        )

    def _run(self, replay: Replay, change: Change) -> None:
        lending = Lending()
        follower = Follower(lending, self._tick, replay, change, self._calls)
        scope = self._start.scope()
        if scope.live is scope.namespace:
            follower.module = scope
        replay.followed = lambda: follower.place
        is_for = scope.code.instructions[scope.start].opname == "FOR_ITER"
        try:
            with replay.forward(inner=lending):
                replay.enter(lambda: follower.run(scope, [UNKNOWN] if is_for else []))
            loss = follower.loss
            if loss is not None and not lending.owns(loss):
                loss = None  # the script's own: it does not depend on what is changed
        finally:
            self.unused = follower.unused
            follower.close()
        replay.take_loss(loss, self._scale)

    def _tick(self) -> None:
        if self._expired():
            raise CannotReplay("there was no time left to follow the script")


def is_like(outcome: Outcome, recorded: float | None) -> bool:
    """Whether a replay without a change gave the loss that the step had."""
    if outcome.problem or outcome.loss is None:
        return False
    if recorded is None:
        return True
    if not math.isfinite(recorded) or not math.isfinite(outcome.loss):
        return not math.isfinite(recorded) and not math.isfinite(outcome.loss)
    return math.isclose(outcome.loss, recorded, rel_tol=CLOSE, abs_tol=1e-6)


class Lending(Ownership):  # type: ignore[no-untyped-call]
    """Lets the models do what they do, and owns what they return."""

    def __init__(self) -> None:
        super().__init__()
        self._is_out = False

    @contextlib.contextmanager
    def out(self) -> Iterator[None]:
        """A model runs."""
        self._is_out = True
        try:
            yield
        finally:
            self._is_out = False

    def _dispatch(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self._is_out:
            return func(*args, **(kwargs or {}))
        return super()._dispatch(func, types, args, kwargs)


Lending.__torch_dispatch__ = Lending._dispatch  # type: ignore[method-assign,assignment]
leave_alone(Lending._dispatch.__code__, callees=True)


class Follower(Interpreter):
    """Follows the script up to its backward.

    Attributes:
        loss: what backward was asked of.
    """

    def __init__(
        self,
        lending: Lending,
        tick: Callable[[], None],
        replay: Replay,
        change: Change,
        calls: Sequence[Call],
    ) -> None:
        super().__init__(lending, lambda _: None, tick)
        self.loss: torch.Tensor | None = None
        self._lending = lending
        self._replay = replay
        self._change = change
        self._calls = list(calls)
        self._watched = {id(module) for module in replay.names.modules.values()}
        self._swapped: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def run(self, scope: Scope, stack: list[Any] | None = None) -> Any:
        left = stack if stack is not None else []
        result = super().run(scope, left)
        if scope.last is not None and self.loss is None:
            # It waits in a call: the loss may be what that was given.
            given_ = [each for each in left if type(each) in permits.TENSORS]
            self.loss = given_[-1] if given_ else None
        return result

    def close(self) -> None:
        super().close()
        self._calls.clear()
        self._swapped.clear()
        self.loss = None

    @property
    def unused(self) -> int:
        """Kept forwards that were not asked for."""
        return len(self._calls)

    # --- data -------------------------------------------------------------------------------------

    def native(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._changed((args, kwargs))
        return super().native(function, *args, **kwargs)

    def attribute(self, value: Any, name: str) -> Any:
        if name == "backward":
            return self._backward(value)
        if name == "scale" and isinstance(value, torch.amp.GradScaler):
            return Permitted(_same)
        if type(value) in permits.TENSORS:
            value = self._changed(value)
        return super().attribute(value, name)

    def _backward(self, value: Any) -> Any:
        if type(value) in permits.TENSORS:
            self.loss = value
            return UNKNOWN
        return Permitted(self._note)

    def _note(self, loss: Any, *_: Any, **__: Any) -> None:
        if type(loss) in permits.TENSORS:
            self.loss = loss

    def _changed(self, value: Any) -> Any:
        """The same values, with what the trial changes of the script's data."""
        kind = type(value)
        if kind is torch.Tensor:
            return self._swap(value)
        if kind is list and id(value) in self.owned:
            return value  # a container of the replay's own keeps its identity
        if kind in (tuple, list):
            return kind(map(self._changed, value))
        if kind is dict and id(value) not in self.owned:
            return {key: self._changed(each) for key, each in value.items()}
        return value

    def _swap(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._lending.owns(tensor):
            return tensor
        known = self._swapped.get(id(tensor))
        if known is not None:
            return known[1]
        with looks.apart():
            changed = self._change.data(tensor.detach())
        self._swapped[id(tensor)] = tensor, changed if changed is not tensor else tensor
        return self._swapped[id(tensor)][1]

    # --- models -----------------------------------------------------------------------------------

    def _call_module(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inner = unwrap(module)
        if id(inner) not in self._watched:
            return super()._call_module(module, args, kwargs)
        call = self._kept(inner)
        known = all(map(is_plain, args)) and all(map(is_plain, kwargs.values()))
        if call is not None and not (known and self._depends((args, kwargs))):
            args, kwargs = given((call.args, call.kwargs), self._change)
        elif known:
            args, kwargs = tree_map(self._lent, (args, kwargs))
        else:
            return UNKNOWN
        with self._lending.out(), self._replay.following(), _as_it_was(call):
            output = inner(*args, **kwargs)
        for tensor in flat_tensors(output):
            self._lending.take(tensor)
        return output

    def _kept(self, module: nn.Module) -> Call | None:
        """The next kept forward of a root."""
        for index, call in enumerate(self._calls):
            root = call.module()
            if root is not None and unwrap(root) is module:
                return self._calls.pop(index)
        return None

    def _depends(self, value: Any) -> bool:
        """Whether something that the replay has computed is among the arguments."""
        return any(
            isinstance(leaf, torch.Tensor) and self._lending.owns(leaf)
            for leaf in tree_leaves(value)
        )

    def _lent(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or self._lending.owns(value):
            return value
        return value if isinstance(value, nn.Parameter) else self._swap(value).detach().clone()

    # --- blocks -----------------------------------------------------------------------------------

    def _context(self, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kind in _GRAD_MODES and not args and not kwargs:
            return kind()
        return super()._context(kind, args, kwargs)

    def enter(self, value: Any) -> contextlib.AbstractContextManager[Any] | None:
        if isinstance(value, torch.enable_grad):
            return torch.enable_grad()
        if isinstance(value, _GRAD_MODES):
            return torch.no_grad()
        return super().enter(value)


@contextlib.contextmanager
def _as_it_was(call: Call | None) -> Iterator[None]:
    """Random streams and autocast as they were when a kept forward began."""
    if call is None:
        yield
        return
    for name, state in call.random.items():
        streams.write(name, state)
    for generator, state in call.generators:
        if state is not None:
            streams.set_state(generator, state)
    kinds = {state.device_type: state for state in call.autocast}
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            state = kinds.get(kind)
            if state is not None:
                on = torch.autocast(kind, state.dtype, enabled=state.enabled, cache_enabled=False)
                stack.enter_context(on)
            elif torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _same(value: Any) -> Any:
    """A loss that a GradScaler scales: the scale is put on where backward begins."""
    return value
