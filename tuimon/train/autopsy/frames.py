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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec
import torch
from torch.utils._device import DeviceContext

from tuimon.model.autopsy import FORWARD, OPERATION, OpSite, PoisonedLeaf
from tuimon.train.autopsy import bytecode, looks, permits, streams
from tuimon.train.autopsy.answers import Answer, Answers
from tuimon.train.autopsy.bytecode import CannotReplay
from tuimon.train.autopsy.examination import Examination
from tuimon.train.autopsy.interpreter import Interpreter
from tuimon.train.autopsy.names import Named, Names, Roots, flat_tensors
from tuimon.train.autopsy.origins import Origins, Site
from tuimon.train.autopsy.ownership import Ownership
from tuimon.train.autopsy.poison import Poison, is_same
from tuimon.train.autopsy.shadow import UNKNOWN, Scope, locals_of
from tuimon.train.autopsy.sites import is_foreign
from tuimon.train.autopsy.slicing import Target, Verdict, conclude
from tuimon.train.autopsy.sources import Item, Sources, rows_of
from tuimon.train.autopsy.tracer import Limits, Stopped, Tracer

ENGINE = "F"
LIMIT_S = 5.0
MAX_OPS = 50_000
MAX_NEAR = 64  # operations before the loss whose values may stand for it
MAX_FRAMES = 6  # of the script's, from the one that called backward outwards
_IN_GRAPH = "in the graph"  # of a live value that an operation of the step has made
NEWER = "what led to the value was not followed: the bytecode of this version of Python is not read"


def retrace(
    poisons: Sequence[Poison],
    *,
    roots: Roots,
    losses: Sequence[torch.Tensor] = (),
    answers: Sequence[Answer] = (),
    also: Iterable[Named] = (),
    limits: Limits | None = None,
) -> Examination:
    """Find the operation that made one of these tensors; call it from within backward's wrapper.

    Args:
        poisons: where the graph ends.
        roots: (prefix of its names, module) of all watched models; their forwards are left out.
        losses: what backward was called with: all that led from the models to it is followed.
        answers: what the models gave.
        also: tensors to be called by name.
        limits: when to give up; never later than after `LIMIT_S` seconds.

    Returns:
        `OPERATION`; `LEAF` where what led to a loss was followed and none is to blame; else
        `UNKNOWN`. Notes tell of what is worth telling.
    """
    limits = limits or Limits()
    began_s = limits.clock()
    found = Examination(ENGINE, reached=FORWARD)
    if not bytecode.is_readable():
        found.notes.append(NEWER)
        return found
    if not (poisons or losses) or is_watched_by_script():
        return found
    about = About(roots, list(also), list(losses), Answers(answers))
    search = Search(poisons, about, limits, found)
    frames = list(frames_of_script())
    try:
        any(search.look_in(frame) for frame in frames) or search.look_beyond()
    except Stopped:
        found.stopped = True
    finally:
        frames.clear()
    search.settle()
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


class Followed(Origins):
    """Every operation belongs to the line that is being followed."""

    def __init__(self, names: Names, entry: CodeType | None, ownership: Ownership) -> None:
        super().__init__(names, entry or Followed.site.__code__)
        self.replay: Interpreter | None = None
        self._ownership = ownership

    def has_grad(self, tensor: torch.Tensor) -> bool:
        return tensor.requires_grad or self._ownership.is_marked(tensor)

    def site(self) -> Site:
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._in_backward(node)
        return Site(FORWARD, None, None if self.replay is None else self.replay.place)


class About(NamedTuple):
    """What is known of the step."""

    roots: Roots
    also: list[Named]
    losses: list[torch.Tensor]
    answers: Answers


class Search:
    """The attempts for one incident.

    Attributes:
        has_graph: whether the replay makes a graph, of its own.
        entry: the function of ours that runs backward over it.
    """

    has_graph = False
    entry: CodeType | None = None

    def __init__(
        self, poisons: Sequence[Poison], about: About, limits: Limits, found: Examination
    ) -> None:
        self._poisons = poisons
        self._about = about
        self._limits = limits
        self._found = found
        self._until_s = limits.clock() + min(LIMIT_S, limits.deadline_s)
        self._apart = frozenset(id(each) for _, root in about.roots for each in root.modules())
        self._leaf: Verdict | None = None  # the nearest leaf that a loss was followed to

    def look_in(self, frame: FrameType) -> bool:
        """Follow one frame, from the innermost loop outwards."""
        try:
            code = bytecode.read(frame.f_code)
            live = locals_of(frame)
            last = code.index_at(frame.f_lasti)
            names = Names(self._about.roots, [*self._about.also, *_named(live)])
        except CannotReplay:
            return False
        for start in [*(loop.head for loop in code.around(last)), 0]:
            scope = Scope(frame.f_code, frame.f_globals, {})
            scope.live, scope.last, scope.start = live, last, start
            if self._follow(scope, names):
                return True
        return False

    def look_beyond(self) -> bool:
        """Look at what gives the script its batches: waiting generators, items of datasets."""
        values = [poison.value for poison in self._poisons if poison.value is not None]
        if not values:
            return False
        with looks.apart():
            rows, singles = rows_of(values)
        sources = Sources()
        self._poisons = [*self._poisons, *singles]
        names = Names(self._about.roots, self._about.also)
        if any(self._make(item, names) for item in sources.items(rows)):
            return True
        return any(self.look_in(frame) for frame in sources.frames)

    def _make(self, item: Item, names: Names) -> bool:
        return self._replay(names, lambda replay: replay.follow(*item))

    def _follow(self, scope: Scope, names: Names) -> bool:
        is_for = scope.code.instructions[scope.start].opname == "FOR_ITER"

        def run(replay: Interpreter) -> None:
            if scope.live is scope.namespace:
                replay.module = scope
            replay.run(scope, [UNKNOWN] if is_for else [])

        return self._replay(names, run, scope)

    def _replay(
        self, names: Names, run: Callable[[Interpreter], None], scope: Scope | None = None
    ) -> bool:
        ownership = Ownership()
        origins = Followed(names, self.entry, ownership)
        remaining_s = max(0.0, self._until_s - self._limits.clock())
        limits = Limits(remaining_s, MAX_OPS, self._limits.clock)
        tracer = Tracer(names, limits, origins)

        def on_value(value: Any) -> None:
            self._compare(value, tracer)

        def answer(module: Any, args: Any, kwargs: Any) -> Any:
            with tracer.apart():
                output = self._output(self._about.answers.to(module, args, kwargs))
                for tensor in flat_tensors(output):
                    ownership.mark(tensor)
                return output

        replay = Interpreter(ownership, on_value, self._tick, self._apart, answer)
        origins.replay = replay
        try:
            with _undisturbed(has_graph=self.has_graph), ownership, tracer:
                run(replay)
            return scope is not None and self._end(scope, replay, tracer)
        except _Reached as reached:
            return self.judge(reached.tensor, tracer)
        except CannotReplay:
            return False
        finally:
            self._found.ops += tracer.count
            origins.replay = None
            replay.close()

    def _output(self, output: Any) -> Any:
        """What a model is said to have given."""
        return output

    def _end(self, scope: Scope, replay: Interpreter, tracer: Tracer) -> bool:
        """A frame was followed up to where it is; whether that tells."""
        loss = self._loss(scope, replay)
        return loss is not None and self.judge(loss, tracer)

    def _tick(self) -> None:
        if self._limits.clock() > self._until_s:
            raise Stopped("the frames of the script were followed for as long as is allowed")

    def _compare(self, value: Any, tracer: Tracer) -> None:
        for tensor in [value] if type(value) in permits.TENSORS else _members(value):
            with tracer.apart():
                same = any(poison.is_that(tensor) for poison in self._poisons)
            if same:
                raise _Reached(tensor)

    def _loss(self, scope: Scope, replay: Interpreter) -> torch.Tensor | None:
        """What the replay has for the loss, or for the bad value nearest to it."""
        losses = self._about.losses
        if not losses:
            return None
        near = _nodes_below(losses)
        live = scope.live or {}
        found: list[tuple[int, torch.Tensor]] = []
        for name, value in scope.names.items():
            living = live.get(name)
            if type(value) is torch.Tensor and type(living) is torch.Tensor and value is not living:
                distance = near.get(living.grad_fn)
                if distance is not None and _is_same(value, living):
                    found.append((distance, value))
        if found:
            return min(found, key=lambda each: each[0])[1]
        asked = [*reversed(replay.asked), *scope.stack]
        given = [each for each in asked if type(each) is torch.Tensor]
        with looks.apart():
            same = [one for one in given if any(is_same(one, loss.detach()) for loss in losses)]
        return same[0] if same else None

    def judge(self, tensor: torch.Tensor, tracer: Tracer) -> bool:
        """Whether an operation that was followed is to blame for a bad value."""
        with looks.apart():
            target = Target("loss" if self._about.losses else "", *tracer.trace(tensor))
        if any(leaf.poisoned.kind == _IN_GRAPH for leaf in tracer.leaves):
            return False  # what made that was not followed
        verdict = conclude(tracer.ops, tracer.leaves, [target], [target])
        if verdict.meant or verdict.first is None:
            return False
        if verdict.verdict == OPERATION:
            self.adopt(verdict)
            return True
        if self._about.losses and self._leaf is None and verdict.leaves[0].tensor.name:
            self._leaf = verdict
        return False

    def settle(self) -> None:
        """No operation is to blame, as far as was followed."""
        if self._found.verdict != OPERATION and self._leaf is not None:
            self.adopt(self._leaf)
            self._found.leaves = [_data(leaf) for leaf in self._found.leaves]

    def adopt(self, verdict: Verdict) -> None:
        """This is what is told."""
        found = self._found
        found.adopt(verdict)
        if verdict.first is not None:
            found.first = _outside(verdict.first)
        found.path = [_outside(site) for site in verdict.path]


def _nodes_below(losses: Sequence[torch.Tensor]) -> dict[Any, int]:
    """The nodes nearest to some losses, and how far away they are."""
    waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    found: dict[Any, int] = {}
    for node in waiting:
        if node in found or len(found) >= MAX_NEAR:
            continue
        found[node] = len(found)
        waiting += [below for below, _ in node.next_functions if below is not None]
    return found


def _is_same(value: torch.Tensor, living: torch.Tensor) -> bool:
    with looks.apart():
        return looks.is_bad(living) and is_same(value, living.detach())


def _outside(site: OpSite) -> OpSite:
    return msgspec.structs.replace(site, module="", in_model=False)


def _data(leaf: PoisonedLeaf) -> PoisonedLeaf:
    """A NaN that was there before the loss code ran is one of the data."""
    if leaf.kind != "constant" or not leaf.tensor.nan:
        return leaf
    return msgspec.structs.replace(leaf, kind="target")


def _members(value: Any) -> list[torch.Tensor]:
    if type(value) not in (list, tuple) and type(value).__module__ != "torch.return_types":
        return []
    return [each for each in value if type(each) in permits.TENSORS]


def _named(live: Mapping[str, Any]) -> list[Named]:
    """The script's own names for tensors that are no parameters."""
    return [
        Named("constant" if value.grad_fn is None else _IN_GRAPH, name, value)
        for name, value in live.items()
        if type(value) is torch.Tensor and (value.grad_fn is not None or not value.requires_grad)
    ]


@contextlib.contextmanager
def _undisturbed(*, has_graph: bool) -> Iterator[None]:
    """No graph unless wanted, no warning shown, nothing cast kept, random streams as before."""
    shown = warnings.showwarning
    cache = torch.is_autocast_cache_enabled()
    before = streams.read_all()
    warnings.showwarning = lambda *_, **__: None
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.set_grad_enabled(has_graph):
            yield
    finally:
        torch.set_autocast_cache_enabled(cache)
        warnings.showwarning = shown
        before.put_back()
