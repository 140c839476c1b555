"""Engine G: the first operation that went wrong, read from the living graph of a loss.

Runs no code of the script's and nothing a second time but single aten operators on the side.
Call it before backward frees the graph; it keeps nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tuimon.model.autopsy import (
    BACKWARD,
    FORWARD,
    LEAF,
    MAX_INPUTS_SHOWN,
    MAX_PATH,
    OPERATION,
    UNKNOWN,
    OpSite,
    PoisonedLeaf,
    TensorNote,
)
from tuimon.model.text import plain
from tuimon.train.autopsy import looks, nodes
from tuimon.train.autopsy.descent import CONSTANTS, PLUMBING, Descent, Stop, number
from tuimon.train.autopsy.linemap import Found as Place
from tuimon.train.autopsy.linemap import LineMap
from tuimon.train.autopsy.names import Named
from tuimon.train.autopsy.poison import Poison
from tuimon.train.autopsy.sites import source_of
from tuimon.train.autopsy.values import VIEWS, Key, Values, quiet

LIMIT_S = 2.0
LIMIT_NODES = 20_000
MAX_LEAVES = 8
_ARITHMETIC = (
    PLUMBING
    | VIEWS
    | {"Add", "Sub", "Rsub", "Mul", "Div", "Pow", "Addmm", "Mm", "Bmm", "Dot", "Mv"}
)

NameOf = Callable[[torch.Tensor], Named | None]


@dataclass(frozen=True)
class Found:
    """What the graph says.

    Attributes:
        verdict, first, leaves, path, constants, upstream, notes: as in `Autopsy`.
        by_elimination: nothing that could be read was bad; the best guess.
        poison: tensors from outside of the graph that may be all that is wrong: what `leaves`
            tells of, or infinities that `first` met. They hold memory.
        in_loss_code: `first` lies outside of every watched model; None where that is not known.
    """

    verdict: str = UNKNOWN
    first: OpSite | None = None
    leaves: tuple[PoisonedLeaf, ...] = ()
    path: tuple[OpSite, ...] = ()
    constants: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    by_elimination: bool = False
    in_loss_code: bool | None = None
    poison: tuple[Poison, ...] = field(default=(), repr=False, compare=False)


def walk(
    losses: Sequence[torch.Tensor],
    *,
    name_of: NameOf | None = None,
    batch: Iterable[Named] = (),
    lines: LineMap | None = None,
    clock: Callable[[], float] = time.monotonic,
    limit_s: float = LIMIT_S,
    limit_nodes: int = LIMIT_NODES,
    devices: bool = False,
) -> Found:
    """Find what made these losses non-finite.

    Args:
        losses: what backward is about to be called with; their graphs must be whole.
        name_of: says what a tensor is: a parameter, a buffer, a part of the batch.
        batch: tensors of the batch, by which an operand that was not saved may be recognised.
        lines: where the lines of operations were learned.
        clock: seconds.
        limit_s: gives up after this long.
        limit_nodes: gives up beyond so many operations.
        devices: also read tensors on a device, which waits for it.
    """
    deadline_s = clock() + limit_s
    if torch._C._len_torch_dispatch_stack():
        return Found(notes=("the graph was not read: a dispatch mode of the script is active",))
    with looks.apart(), quiet(), torch._C._DisableAutocast():
        values = Values(
            losses,
            limit_nodes=limit_nodes,
            expired=lambda: clock() > deadline_s,
            devices=devices,
        )
        bad = [loss for loss in losses if values.looks_bad(loss.detach()) is not False]
        return _Search(values, bad, name_of, list(batch), lines).result()


class _Search:
    """One walk from the losses down."""

    def __init__(
        self,
        values: Values,
        losses: list[torch.Tensor],
        name_of: NameOf | None,
        batch: list[Named],
        lines: LineMap | None,
    ) -> None:
        self._values = values
        self._name_of = name_of or (lambda _: None)
        self._batch = batch
        self._reading = None if lines is None else lines.read(losses)
        self._losses = losses
        self._notes: list[str] = []
        self._way = Descent(values, losses)

    def result(self) -> Found:
        """The verdict on what was collected."""
        self._note_limits()
        if not self._way.stops:
            leaf = [_leaf("constant", loss.detach()) for loss in self._losses]
            return Found(LEAF if leaf else UNKNOWN, leaves=tuple(leaf), notes=tuple(self._notes))
        births = self._way.births()
        meetings = [stop for stop in self._way.in_order() if stop.met]
        real = [stop for stop in births if nodes.kind(stop.node) not in CONSTANTS]
        intended = [stop for stop in self._way.in_order() if self._only_constants(stop)]
        poisoned = [stop for stop in meetings if stop not in intended]
        if real and not (poisoned and number(poisoned[0]) <= number(real[0])):
            return self._found(OPERATION, real[0])
        if poisoned:
            return self._found(LEAF, poisoned[0])
        turned = self._way.turned()
        if turned is not None:
            return self._found(OPERATION, turned)
        if births:
            return self._found(OPERATION, births[0])
        return self._found(OPERATION, self._nearest(), by_elimination=True)

    # --- the verdict ------------------------------------------------------------------------------

    def _only_constants(self, stop: Stop) -> bool:
        """Whether all that came in from outside are infinities that nobody names: a mask."""
        return bool(stop.met) and all(
            value is not None
            and not bool(torch.isnan(value).any())
            and self._named(name, value, original).kind == "constant"
            for name, value, original in stop.met
        )

    def _nearest(self) -> Stop:
        """The operation that is most likely to be meant when nothing is known for certain."""
        self._notes.append(
            "named by elimination: no value that the graph still holds shows where it began"
        )
        stop = next(iter(self._way.stops.values()))
        while nodes.kind(stop.node) in PLUMBING and len(stop.below) == 1:
            below = self._way.stops.get(stop.below[0])
            if below is None:
                break
            stop = below
        return stop

    def _note_limits(self) -> None:
        values = self._values
        if values.is_cut:
            self._notes.append("the graph was read in part: it is larger than the limit")
        if values.packed:
            self._notes.append(
                "values that checkpointing or a hook of the script has packed away were not read"
            )
        if values.unread:
            self._notes.append("tensors on a device were not read, so that nothing waits for it")

    def _found(self, verdict: str, stop: Stop, *, by_elimination: bool = False) -> Found:
        while verdict == LEAF and nodes.kind(stop.node) in VIEWS and self._way.above(stop):
            above = self._way.above(stop)
            assert above is not None
            known = {id(each) for each in above.met}
            above.met += [each for each in stop.met if id(each) not in known]
            stop = above
        chain = self._way.chain(stop)
        sites = [self._site(each) for each in chain]
        place = self._placed(stop)
        leaves = [
            self._named_leaf(name, value, original)
            for each in ([stop] if verdict == LEAF else [])
            for name, value, original in each.met
        ]
        if place is not None and place.note:
            self._notes.append(place.note)
        return Found(
            verdict,
            self._site(stop, full=True),
            tuple(leaves[:MAX_LEAVES]),
            tuple(sites[:MAX_PATH]),
            self._constants(stop),
            notes=tuple(self._notes),
            by_elimination=by_elimination,
            in_loss_code=None if place is None or place.module is None else not place.in_model,
            poison=self._poison(stop) if verdict == LEAF else self._given(stop),
        )

    def _given(self, stop: Stop) -> tuple[Poison, ...]:
        """Infinities from outside that came to an operation by arithmetic alone: no masks."""
        found: list[Poison] = []
        waiting = [(id(stop.node), stop.output)]
        seen: set[Key] = set()
        while waiting:
            key = waiting.pop()
            below = self._way.stops.get(key)
            if key in seen or below is None or nodes.kind(below.node) not in _ARITHMETIC:
                continue
            seen.add(key)
            if self._only_constants(below):
                found += self._poison(below)
            waiting += below.below
        return tuple(found)

    def _poison(self, stop: Stop) -> tuple[Poison, ...]:
        edges = range(len(stop.node.next_functions))
        operands = [self._values.operand(stop.node, at) for at in edges]
        other = next((each for each in operands if each is not None), None)
        return tuple(
            Poison(value, None if value is not None else original, other)
            for _, value, original in stop.met
        )

    def _constants(self, stop: Stop) -> tuple[str, ...]:
        """Sources of intended infinities at or below an operation."""
        found: dict[str, None] = {}
        waiting = [(id(stop.node), stop.output)]
        seen: set[Key] = set()
        while waiting:
            key = waiting.pop()
            below = self._way.stops.get(key)
            if key in seen or below is None:
                continue
            seen.add(key)
            if nodes.kind(below.node) in CONSTANTS:
                found[nodes.op_of(below.node).name.partition("::")[2]] = None
            if below.met and self._only_constants(below):
                found["constant"] = None
            waiting += below.below
        return tuple(found)

    def _placed(self, stop: Stop) -> Place | None:
        return None if self._reading is None else self._reading.place_of(stop.node)

    def _site(self, stop: Stop, *, full: bool = False) -> OpSite:
        place = self._placed(stop)
        within = "" if place is None else place.within
        return site_of(
            nodes.op_of(stop.node).name,
            place,
            node=within or (stop.node.name() if nodes.is_custom(stop.node) else ""),
            phase=BACKWARD if within else FORWARD,
            inputs=self._operands(stop) if full else [],
            outputs=[] if not full else self._outcome(stop),
        )

    def _operands(self, stop: Stop) -> list[TensorNote]:
        notes = []
        for position in range(min(len(stop.node.next_functions), MAX_INPUTS_SHOWN)):
            value = self._values.operand(stop.node, position)
            if value is not None and self._values.looks_bad(value) is not None:
                named = self._name_of(value)
                names = nodes.op_of(stop.node).edges
                name = named.name if named is not None else names[position]
                notes.append(looks.note_of(value, name))
        return notes

    def _outcome(self, stop: Stop) -> list[TensorNote]:
        value = self._values.of(stop.node, stop.output)
        if value is None or self._values.looks_bad(value) is None:
            return []
        return [looks.note_of(value)]

    def _named(self, argument: str, value: torch.Tensor | None, original: Any) -> Named:
        tensor = original if value is None else value
        if argument == "parameter":
            named = self._name_of(original)
            return named or Named("parameter", "", tensor)
        if value is not None:
            named = self._name_of(value)
            if named is not None:
                return named
        named = self._recognised(tensor)
        if named is not None:
            return named
        is_target = argument == "target"
        return Named("target" if is_target else "constant", argument, tensor)

    def _recognised(self, tensor: torch.Tensor) -> Named | None:
        """The part of the batch that is bad in the same samples, where there is just one."""
        samples = looks.bad_samples(tensor)
        same = [
            named
            for named in self._batch
            if looks.is_bad(named.tensor) and looks.bad_samples(named.tensor) == samples
        ]
        return same[0] if len(same) == 1 else None

    def _named_leaf(self, name: str, value: torch.Tensor | None, original: Any) -> PoisonedLeaf:
        named = self._named(name, value, original)
        tensor = named.tensor.detach() if value is None else value
        return _leaf(named.kind, tensor, named.name)


def site_of(
    op: str,
    place: Place | None,
    *,
    node: str = "",
    phase: str = FORWARD,
    inputs: Sequence[TensorNote] = (),
    outputs: Sequence[TensorNote] = (),
) -> OpSite:
    """The record of an operation of the graph."""
    at = None if place is None else place.place
    return OpSite(
        plain(op, 120),
        phase,
        module=None if place is None else place.module,
        in_model=place is not None and place.in_model,
        file=None if at is None else at.file,
        line=None if at is None else at.line,
        source=source_of(at),
        function="" if at is None else plain(at.function, 120),
        node=plain(node, 120),
        inputs=list(inputs),
        outputs=list(outputs),
    )


def _leaf(kind: str, tensor: torch.Tensor, name: str = "") -> PoisonedLeaf:
    note = looks.note_of(tensor, name)
    return PoisonedLeaf(kind, note, *(([], 0) if kind == "parameter" else looks.bad_rows(tensor)))
