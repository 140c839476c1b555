"""Engine F: what made a value that the graph of the loss only knows as given.

The script's frame that called backward is alive. Its bytecode, from the head of the loop it is in
to where it is, is followed once more beside it, under the tracer, until the value that the graph
ends at comes out again bit for bit. None of the script's code is called, and nothing of its is
changed: what would be needed for that counts as unknown.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import msgspec
import torch
from torch.utils._device import DeviceContext

from tuimon.model.autopsy import FORWARD, OPERATION, OpSite
from tuimon.train.autopsy import bytecode, looks, permits, streams
from tuimon.train.autopsy.bytecode import CannotReplay
from tuimon.train.autopsy.examination import Examination
from tuimon.train.autopsy.interpreter import Interpreter
from tuimon.train.autopsy.names import Named, Names, Roots
from tuimon.train.autopsy.origins import Origins, Site
from tuimon.train.autopsy.ownership import Ownership
from tuimon.train.autopsy.poison import Poison
from tuimon.train.autopsy.shadow import UNKNOWN, Scope, locals_of
from tuimon.train.autopsy.sites import is_foreign
from tuimon.train.autopsy.slicing import Target, conclude
from tuimon.train.autopsy.tracer import Limits, Stopped, Tracer

ENGINE = "F"
LIMIT_S = 5.0
MAX_OPS = 50_000
MAX_FRAMES = 6  # of the script's, from the one that called backward outwards
NEWER = "what led to the value was not followed: the bytecode of this version of Python is not read"


def retrace(
    poisons: Sequence[Poison],
    *,
    roots: Roots,
    also: Iterable[Named] = (),
    limits: Limits | None = None,
) -> Examination:
    """Find the operation that made one of these tensors; call it from within backward's wrapper.

    Args:
        poisons: where the graph ends.
        roots: (prefix of its names, module) of all watched models; their forwards are left out.
        also: tensors to be called by name.
        limits: when to give up; never later than after `LIMIT_S` seconds.

    Returns:
        `OPERATION`, or `UNKNOWN` where none is found; notes tell of what is worth telling.
    """
    limits = limits or Limits()
    began_s = limits.clock()
    found = Examination(ENGINE, reached=FORWARD)
    if not bytecode.is_readable():
        found.notes.append(NEWER)
        return found
    if not poisons or is_watched_by_script():
        return found
    search = _Search(poisons, roots, list(also), limits, found)
    frames = list(frames_of_script())
    try:
        for frame in frames:
            if search.look_in(frame):
                break
    except Stopped:
        found.stopped = True
    finally:
        frames.clear()
    found.duration_s = limits.clock() - began_s
    return found


def frames_of_script() -> Iterator[FrameType]:
    """The script's frames that led here, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and count < MAX_FRAMES:
        if not is_foreign(frame.f_code.co_filename):
            count += 1
            yield frame
        frame = frame.f_back


def is_watched_by_script() -> bool:
    """Whether modes of the script's would see what is done here."""
    if torch._C._len_torch_dispatch_stack():
        return True
    modes = [
        torch._C._get_function_stack_at(at) for at in range(torch._C._len_torch_function_stack())
    ]
    return any(not isinstance(mode, DeviceContext) for mode in modes)


class _Reached(Exception):
    """The value came out again."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.tensor = tensor


class _Followed(Origins):
    """Every operation belongs to the line that is being followed."""

    def __init__(self) -> None:
        self.replay: Interpreter | None = None

    def meet(self, in_graph: bool, op: str) -> None: ...

    def site(self) -> Site:
        return Site(FORWARD, None, None if self.replay is None else self.replay.place)


class _Search:
    """The attempts for one incident."""

    def __init__(
        self,
        poisons: Sequence[Poison],
        roots: Roots,
        also: list[Named],
        limits: Limits,
        found: Examination,
    ) -> None:
        self._poisons = poisons
        self._roots = roots
        self._also = also
        self._limits = limits
        self._found = found
        self._until_s = limits.clock() + min(LIMIT_S, limits.deadline_s)
        self._apart = frozenset(id(each) for _, root in roots for each in root.modules())

    def look_in(self, frame: FrameType) -> bool:
        """Follow one frame, from the innermost loop outwards."""
        try:
            code = bytecode.read(frame.f_code)
            live = locals_of(frame)
            last = code.index_at(frame.f_lasti)
            names = Names(self._roots, [*self._also, *_named(live)])
        except CannotReplay:
            return False
        for start in [*(loop.head for loop in code.around(last)), 0]:
            scope = Scope(frame.f_code, frame.f_globals, {})
            scope.live, scope.last, scope.start = live, last, start
            if self._follow(scope, names):
                return True
        return False

    def _follow(self, scope: Scope, names: Names) -> bool:
        origins = _Followed()
        remaining_s = max(0.0, self._until_s - self._limits.clock())
        limits = Limits(remaining_s, MAX_OPS, self._limits.clock)
        tracer = Tracer(names, limits, origins)
        ownership = Ownership()

        def on_value(value: Any) -> None:
            self._compare(value, tracer)

        replay = Interpreter(ownership, on_value, self._tick, self._apart)
        if scope.live is scope.namespace:
            replay.module = scope
        origins.replay = replay
        is_for = scope.code.instructions[scope.start].opname == "FOR_ITER"
        try:
            with _undisturbed(), ownership, tracer:
                replay.run(scope, [UNKNOWN] if is_for else [])
        except _Reached as reached:
            return self._judge(reached.tensor, tracer)
        except CannotReplay:
            return False
        finally:
            self._found.ops += tracer.count
            origins.replay = None
            replay.close()
        return False

    def _tick(self) -> None:
        if self._limits.clock() > self._until_s:
            raise Stopped("the frames of the script were followed for as long as is allowed")

    def _compare(self, value: Any, tracer: Tracer) -> None:
        for tensor in [value] if type(value) in permits.TENSORS else _members(value):
            with tracer.apart():
                same = any(poison.is_that(tensor) for poison in self._poisons)
            if same:
                raise _Reached(tensor)

    def _judge(self, tensor: torch.Tensor, tracer: Tracer) -> bool:
        with looks.apart():
            target = Target("", *tracer.trace(tensor))
        verdict = conclude(tracer.ops, tracer.leaves, [target], [target])
        if verdict.verdict != OPERATION or verdict.meant or verdict.first is None:
            return False
        found = self._found
        found.adopt(verdict)
        found.first = _outside(verdict.first)
        found.path = [_outside(site) for site in verdict.path]
        return True


def _outside(site: OpSite) -> OpSite:
    return msgspec.structs.replace(site, module="", in_model=False)


def _members(value: Any) -> list[torch.Tensor]:
    if type(value) not in (list, tuple) and type(value).__module__ != "torch.return_types":
        return []
    return [each for each in value if type(each) in permits.TENSORS]


def _named(live: Mapping[str, Any]) -> list[Named]:
    """The script's own names for tensors that are no parameters."""
    return [
        Named("constant", name, value)
        for name, value in live.items()
        if type(value) is torch.Tensor and not value.requires_grad
    ]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No graph, no warning shown, nothing cast kept, random streams as before."""
    shown = warnings.showwarning
    cache = torch.is_autocast_cache_enabled()
    before = streams.read_all()
    warnings.showwarning = lambda *_, **__: None
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_autocast_cache_enabled(cache)
        warnings.showwarning = shown
        before.put_back()
