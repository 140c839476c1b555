"""Watches every operator of a re-run and keeps those that gave something not finite.

A dispatch mode, entered and left by one function. Never raises into the run but to end it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tuimon.model.autopsy import MAX_INPUTS_SHOWN, PoisonedLeaf, TensorNote
from tuimon.train.autopsy import looks
from tuimon.train.autopsy.kinds import Kind, Operands, kind_of, operands
from tuimon.train.autopsy.memory import Alive, Memory, storage_key
from tuimon.train.autopsy.names import Names, flat_tensors
from tuimon.train.autopsy.origins import Origins, Site
from tuimon.train.taps.compiler import leave_alone

FULL_NOTES = 256  # bad operations whose operands are told in full, beside those that begin it
MAX_RECORDS = 20_000  # bad operations that are kept
_CLOCK_EVERY = 16  # operations between two looks at the clock


class Stopped(BaseException):
    """Ends a re-run; no code of the user's should catch it."""


@dataclass(frozen=True)
class Limits:
    """When a re-run is given up.

    Attributes:
        deadline_s: time from its beginning.
        max_ops: operators.
    """

    deadline_s: float = 20.0
    max_ops: int = 500_000
    clock: Callable[[], float] = time.monotonic


class BadInput(NamedTuple):
    """An operand that is not finite.

    Attributes:
        sources: indices of the operations that made it so.
        leaf: index among the poisoned leaves, where no operation did.
    """

    has_nan: bool
    sources: tuple[int, ...]
    leaf: int | None


@dataclass(slots=True)
class BadOp:
    """One operation with an output that is not finite.

    Attributes:
        scalars: it was given an infinite number that is no tensor.
        makes_new: an element is bad although its operands are finite at the same place.
        has_grad: an operand belongs to the graph.
    """

    index: int
    kind: Kind
    site: Site
    inputs: list[TensorNote]
    outputs: list[TensorNote]
    bad: list[BadInput] = field(default_factory=list)
    scalars: list[float] = field(default_factory=list)
    makes_new: bool = False
    has_grad: bool = False

    @property
    def gives_nan(self) -> bool:
        return any(note.nan for note in self.outputs)

    @property
    def takes_nan(self) -> bool:
        return any(one.has_nan for one in self.bad) or any(x != x for x in self.scalars)

    @property
    def only_neginf(self) -> bool:
        """Whether all that is wrong with its outputs is -Inf."""
        return not any(note.nan or note.posinf for note in self.outputs)


class Leaf(NamedTuple):
    """A tensor that was not finite before anything was computed from it."""

    poisoned: PoisonedLeaf
    only_neginf: bool
    has_nan: bool


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode. Lives for one re-run.

    Attributes:
        ops: bad operations in order.
        leaves: poisoned leaves in the order in which they were met.
        count: operators that ran.
        hidden: tensors that could not be looked at.
        failures: operators whose outputs could not be looked at.
    """

    def __init__(self, names: Names, limits: Limits, origins: Origins) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[BadOp] = []
        self.leaves: list[Leaf] = []
        self.count = 0
        self.hidden = 0
        self.failures = 0
        self.stopped = ""
        self.origins = origins
        self._names = names
        self._limits = limits
        self._memory = Memory()
        self._unfilled: dict[int, tuple[Alive, Kind, Site]] = {}
        self._leaf_of: dict[int, tuple[Alive, int]] = {}
        self._looking = False
        self._until_s = limits.clock() + limits.deadline_s

    def _dispatch(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._looking:
            return func(*args, **kwargs)
        self._tick()
        try:
            kind = kind_of(func)
            given = operands(kind, args, kwargs)
            self.origins.meet(any(tensor.requires_grad for tensor in given.read), kind.name)
            before = self._before(given) if kind.writes else {}
        except Exception:
            self.failures += 1
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if not kind.is_view:
            try:
                self._after(kind, given, before, result)
            except Exception:
                self.failures += 1
        return result

    def _tick(self) -> None:
        self.count += 1
        limits = self._limits
        if self.count > limits.max_ops:
            self._stop(f"the re-run was ended after {limits.max_ops} operations")
        if self.count % _CLOCK_EVERY == 0 and limits.clock() > self._until_s:
            self._stop(f"the re-run was ended for lack of time after {self.count} operations")

    def _stop(self, why: str) -> None:
        self.stopped = why
        # With it on, the engine would print the stack of the node that "failed".
        torch.autograd.set_detect_anomaly(False)
        raise Stopped(why)

    def _before(self, given: Operands) -> dict[int, TensorNote]:
        """What the operands that will be overwritten are before that, by their place."""
        keys = {storage_key(tensor) for tensor in given.written}
        return {
            index: looks.note_of(tensor, self._names.name_of(tensor))
            if looks.is_bad(tensor)
            else looks.finite_note_of(tensor, self._names.name_of(tensor))
            for index, tensor in enumerate(given.read)
            if storage_key(tensor) in keys
        }

    def _after(
        self, kind: Kind, given: Operands, before: dict[int, TensorNote], result: Any
    ) -> None:
        outputs = given.written if kind.writes else flat_tensors(result)
        if kind.unfilled:
            self._remember_unfilled(kind, outputs)
            return
        bad = []
        for tensor in outputs:
            if looks.is_hidden(tensor):
                self.hidden += 1
            elif looks.is_bad(tensor):
                bad.append(tensor)
            elif self._memory:
                self._memory.cleared(tensor)
        if not bad or len(self.ops) >= MAX_RECORDS:
            return
        if not kind.writes:
            # A view that the schema does not tell as one.
            keys = {storage_key(tensor) for tensor in given.read}
            bad = [tensor for tensor in bad if storage_key(tensor) not in keys]
        if bad:
            self._record(kind, given, before, bad)

    def _record(
        self,
        kind: Kind,
        given: Operands,
        before: dict[int, TensorNote],
        bad: list[torch.Tensor],
    ) -> None:
        op = BadOp(len(self.ops), kind, self.origins.site(), [], [], scalars=given.scalars)
        op.has_grad = any(map(self.origins.has_grad, given.read))
        wrong = self._bad_inputs(op, given.read, before)
        begins = all(not one.has_nan for one in op.bad)
        full = begins or len(self.ops) < FULL_NOTES
        name_of = self._names.name_of
        op.inputs = [
            before.get(index) or looks.note_of(tensor, name_of(tensor), full=full)
            for index, tensor in enumerate(given.read[:MAX_INPUTS_SHOWN])
        ]
        op.outputs = [
            looks.note_of(tensor, self._names.name_of(tensor), full=full)
            for tensor in bad[:MAX_INPUTS_SHOWN]
        ]
        if wrong and kind.pointwise and not kind.writes and begins:
            op.makes_new = looks.makes_new(bad, given.read)
        self.ops.append(op)
        for tensor in bad:
            self._memory.wrote(tensor, op.index)

    def _bad_inputs(
        self, op: BadOp, read: list[torch.Tensor], before: dict[int, TensorNote]
    ) -> bool:
        for index, tensor in enumerate(read):
            note = before.get(index)
            if note is None:
                is_bad = looks.is_bad(tensor)
                has_nan = is_bad and bool(torch.isnan(_values(tensor)).any())
            else:
                is_bad, has_nan = bool(note.nan or note.posinf or note.neginf), note.nan > 0
            if is_bad:
                sources, leaf = self.trace(tensor)
                op.bad.append(BadInput(has_nan, sources, leaf))
        return bool(op.bad)

    def trace(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], int | None]:
        """What made a bad tensor bad: (operations, or the leaf that it is)."""
        key = storage_key(tensor)
        if key is None:
            return (), None
        sources = self._memory.writers(tensor)
        if sources:
            return sources, None
        unfilled = self._unfilled.pop(key, None)
        if unfilled is not None and unfilled[0]:
            _, kind, site = unfilled
            op = BadOp(len(self.ops), kind, site, [], [looks.note_of(tensor)])
            self.ops.append(op)
            self._memory.wrote(tensor, op.index)
            return (op.index,), None
        return (), self._leaf(tensor, key)

    def _leaf(self, tensor: torch.Tensor, key: int) -> int:
        known = self._leaf_of.get(key)
        if known is not None and known[0]:
            return known[1]
        named = self._names.of(tensor)
        whole = tensor if named is None or not looks.is_bad(named.tensor) else named.tensor
        note = looks.note_of(whole, named.name if named else "")
        kind = named.kind if named else "constant"
        poisoned = PoisonedLeaf(kind, note, *looks.bad_rows(whole))
        only_neginf = bool(note.neginf) and not note.nan and not note.posinf
        self.leaves.append(Leaf(poisoned, only_neginf, note.nan > 0))
        self._leaf_of[key] = (Alive(tensor), len(self.leaves) - 1)
        return len(self.leaves) - 1

    def _remember_unfilled(self, kind: Kind, outputs: list[torch.Tensor]) -> None:
        for tensor in outputs:
            key = storage_key(tensor)
            if key is not None and tensor.dtype.is_floating_point:
                self._unfilled[key] = (Alive(tensor), kind, self.origins.site())
                self._memory.forget(tensor)

    def apart(self) -> AbstractContextManager[None]:
        """What is done inside is not part of the re-run."""
        return _Apart(self)

    def is_bad_output(self, output: Any) -> bool:
        """Whether a module gave something that is not finite; free while nothing was bad."""
        if not self._memory and not self._leaf_of:
            return False
        with self.apart():
            for tensor in flat_tensors(output):
                key = storage_key(tensor)
                if (key in self._memory or key in self._leaf_of) and looks.is_bad(tensor):
                    return True
        return False


# Set afterwards: torch would wrap it while the class is made, and that wrapper loads the compiler,
# which takes seconds, at the first operation.
Tracer.__torch_dispatch__ = Tracer._dispatch  # type: ignore[method-assign,assignment]
leave_alone(Tracer._dispatch.__code__, callees=True)


class _Apart:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._looks = looks.apart()

    def __enter__(self) -> None:
        self._tracer._looking = True
        self._looks.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._looks.__exit__(None, None, None)
        self._tracer._looking = False


def _values(tensor: torch.Tensor) -> torch.Tensor:
    values = looks.readable(tensor)
    assert values is not None
    return values
