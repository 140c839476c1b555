"""The verdict: from what is bad back along the data to what made it so.

Plain data in, plain data out: nothing here touches a tensor. An infinity that the user wrote, or
that the forward does not let through, is never accused by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from tuimon.model.autopsy import (
    BACKWARD,
    FORWARD,
    LEAF,
    MAX_PATH,
    OPERATION,
    UNKNOWN,
    OpSite,
    PoisonedLeaf,
)
from tuimon.train.autopsy import sites
from tuimon.train.autopsy.tracer import BadInput, BadOp, Leaf

# Their -Inf and Inf stand for "nothing yet" or "not this one".
_MEANT_LEAVES = ("buffer", "constant")


class Target(NamedTuple):
    """Something that is seen to be bad: an output, the loss, a gradient, a parameter."""

    name: str
    sources: tuple[int, ...]
    leaf: int | None


@dataclass(frozen=True)
class Verdict:
    """What the slice says; fields as in `model.autopsy.Autopsy`.

    Attributes:
        meant: everything bad in the targets is an infinity that the user wrote.
        index: of `first` among the bad operations.
    """

    verdict: str = UNKNOWN
    first: OpSite | None = None
    leaves: list[PoisonedLeaf] = field(default_factory=list)
    path: list[OpSite] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    meant: bool = False
    index: int | None = None


class Slice:
    """The bad operations that fed what is bad."""

    def __init__(
        self, ops: Sequence[BadOp], leaves: Sequence[Leaf], targets: Sequence[Target]
    ) -> None:
        self.ops = ops
        self.leaves = leaves
        self.targets = targets
        self.members = sorted(_closure(ops, targets, through_backward=True))

    def visible(self, outputs: Sequence[Target]) -> set[int]:
        """Forward operations whose bad values reach an output by way of the forward."""
        found = _closure(self.ops, outputs, through_backward=False)
        places = {_place_key(self.ops[i]) for i in found if self.ops[i].site.phase == FORWARD}
        recomputed = {
            i
            for i in self.members
            if self.ops[i].site.phase == FORWARD and _place_key(self.ops[i]) in places
        }
        return found | recomputed


def _closure(
    ops: Sequence[BadOp], targets: Iterable[Target], *, through_backward: bool
) -> set[int]:
    todo = [source for target in targets for source in target.sources]
    seen: set[int] = set()
    while todo:
        index = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        op = ops[index]
        for one in op.bad:
            for source in one.sources:
                crosses = op.site.phase == BACKWARD and ops[source].site.phase == FORWARD
                if through_backward or not crosses:
                    todo.append(source)
    return seen


def _place_key(op: BadOp) -> tuple[object, ...]:
    return (op.kind.name, op.site.place)


def conclude(
    ops: Sequence[BadOp],
    leaves: Sequence[Leaf],
    targets: Sequence[Target],
    outputs: Sequence[Target],
) -> Verdict:
    """Who is to blame.

    Args:
        ops: bad operations in the order in which they ran.
        leaves: poisoned leaves.
        targets: what is bad.
        outputs: those of the forward that are bad; among the targets or not.
    """
    piece = Slice(ops, leaves, targets)
    visible = piece.visible(outputs)
    trial = _Trial(piece, visible, masks_are_meant=True)
    found = trial.run()
    if found is None or not (found.kind.is_softmax or trial.blames_nobody_else(found)):
        # What looked like a mask was none: nothing that reads masks was at fault.
        trial = _Trial(piece, visible, masks_are_meant=False)
        found = trial.run()
    if found is None:
        return _without_operation(trial)
    if trial.met:
        return _of_leaf(trial, found)
    return Verdict(
        OPERATION,
        first=site_of(found),
        leaves=[],
        path=_path(piece, found),
        constants=trial.constants_of(found),
        index=found.index,
    )


class _Trial:
    """One walk along a slice from its beginning, excusing what was meant.

    Attributes:
        excused: operations whose bad values were meant, or did not matter in the forward; each
            with the names of where those values come from.
        used_masks: a value was excused only because masks are.
        met: leaves that the found operation met.
    """

    def __init__(self, piece: Slice, visible: set[int], *, masks_are_meant: bool) -> None:
        self.piece = piece
        self.excused: dict[int, list[str]] = {}
        self.used_masks = False
        self.met: list[int] = []
        self._visible = visible
        self._masks = masks_are_meant

    def run(self) -> BadOp | None:
        """The first operation that is not excused."""
        for index in self.piece.members:
            op = self.piece.ops[index]
            guilty = self._guilty(op)
            if guilty:
                return op
        return None

    def blames_nobody_else(self, found: BadOp) -> bool:
        return not self.used_masks

    def _guilty(self, op: BadOp) -> bool:
        poisoned = [one for one in op.bad if not self._is_excused(one)]
        names = _unique(name for one in op.bad for name in self._names(one))
        if op.site.phase == FORWARD and op.index not in self._visible:
            self.excused[op.index] = names if names and not op.makes_new else [_base(op)]
            return False
        if poisoned:
            self.met = [one.leaf for one in poisoned if one.leaf is not None]
            return True
        if op.gives_nan and not op.takes_nan:
            # A constant that is NaN was meant to be replaced.
            return True
        if not op.bad:
            return self._begins(op)
        if op.makes_new or self._leaves_the_forward(op):
            return True
        self.excused[op.index] = names
        return False

    def _begins(self, op: BadOp) -> bool:
        """Whether an operation with finite operands is to blame."""
        if op.scalars or not op.inputs:
            self.excused[op.index] = [_base(op)]
            return False
        if self._masks and op.only_neginf and not op.has_grad and op.site.phase == FORWARD:
            self.used_masks = True
            self.excused[op.index] = [_base(op)]
            return False
        return True

    def _leaves_the_forward(self, op: BadOp) -> bool:
        """Whether a value that the forward guarded makes something bad in the backward."""
        if op.site.phase == FORWARD:
            return False
        ops = self.piece.ops
        return any(
            ops[source].site.phase == FORWARD and source not in self._visible
            for one in op.bad
            for source in one.sources
        )

    def _is_excused(self, one: BadInput) -> bool:
        if one.leaf is not None:
            return self._is_meant(self.piece.leaves[one.leaf])
        # The last that wrote there counts: what lay there before went into it.
        return bool(one.sources) and all(source in self.excused for source in one.sources)

    def _is_meant(self, leaf: Leaf) -> bool:
        if leaf.has_nan:
            return False
        kind = leaf.poisoned.kind
        if kind == "constant" or (kind in _MEANT_LEAVES and leaf.only_neginf):
            return True
        if kind in ("batch", "target") and leaf.only_neginf and self._masks:
            self.used_masks = True
            return True
        return False

    def _names(self, one: BadInput) -> list[str]:
        if one.leaf is not None:
            poisoned = self.piece.leaves[one.leaf].poisoned
            return [f"{poisoned.kind} {poisoned.tensor.name}".strip()]
        return [name for source in one.sources for name in self.excused.get(source, ())]

    def constants_of(self, op: BadOp) -> list[str]:
        """Where the infinities that an operation was given come from."""
        names = [name for one in op.bad for name in self._names(one)]
        if op.scalars:
            names.append(_base(op))
        return _unique(names)


def _without_operation(trial: _Trial) -> Verdict:
    """Nobody but the user's own infinities, or a leaf that was given on as it is."""
    piece = trial.piece
    direct = [target.leaf for target in piece.targets if target.leaf is not None]
    blamed = [index for index in direct if not trial._is_meant(piece.leaves[index])]
    if blamed:
        return Verdict(LEAF, leaves=[piece.leaves[i].poisoned for i in _unique(blamed)])
    constants = [name for index in piece.members for name in trial.excused.get(index, ())]
    if not piece.members:
        return Verdict()
    first = piece.ops[piece.members[0]]
    return Verdict(
        OPERATION,
        first=site_of(first),
        path=_path(piece, first),
        constants=_unique(constants),
        meant=True,
        index=first.index,
    )


def _of_leaf(trial: _Trial, found: BadOp) -> Verdict:
    """The leaves that the slice met, the nearest first."""
    piece = trial.piece
    near = list(trial.met)
    for index in piece.members:
        near += [one.leaf for one in piece.ops[index].bad if one.leaf is not None]
    leaves = [i for i in _unique(near) if i in trial.met or not trial._is_meant(piece.leaves[i])]
    return Verdict(
        LEAF,
        first=site_of(found),
        leaves=[piece.leaves[index].poisoned for index in leaves],
        path=_path(piece, found),
        constants=trial.constants_of(found) if len(found.bad) > 1 else [],
        index=found.index,
    )


_Item = TypeVar("_Item")


def _unique(items: Iterable[_Item]) -> list[_Item]:
    return list(dict.fromkeys(items))


def _base(op: BadOp) -> str:
    return op.kind.name.rpartition("::")[2]


def site_of(op: BadOp) -> OpSite:
    """An operation as the record tells it."""
    site = op.site
    place = site.place
    return OpSite(
        op=op.kind.name,
        phase=site.phase,
        module=site.module,
        in_model=site.module is not None,
        file=None if place is None else place.file,
        line=None if place is None else place.line,
        source=sites.source_of(place),
        function="" if place is None else place.function,
        node=site.node,
        inputs=op.inputs,
        outputs=op.outputs,
    )


def _path(piece: Slice, first: BadOp) -> list[OpSite]:
    """From `first` to something that is bad, each step an operand of the next."""
    consumers: dict[int, list[int]] = {}
    for index in piece.members:
        for one in piece.ops[index].bad:
            for source in one.sources:
                consumers.setdefault(source, []).append(index)
    ends = {source: target.name for target in piece.targets for source in target.sources}
    path = [site_of(first)]
    index = first.index
    while following := [i for i in consumers.get(index, ()) if i > index]:
        index = min(following)
        _extend(path, site_of(piece.ops[index]))
    path[-1] = _named(path[-1], ends.get(index, ""))
    if len(path) <= MAX_PATH:
        return path
    return path[: MAX_PATH // 2] + path[-(MAX_PATH - MAX_PATH // 2) :]


def _extend(path: list[OpSite], site: OpSite) -> None:
    last = path[-1]
    keys = [(one.op, one.phase, one.module, one.file, one.line) for one in (last, site)]
    if keys[0] == keys[1] and len(path) > 1:
        path[-1] = msgspec.structs.replace(site, count=last.count + 1)
    else:
        path.append(site)


def _named(site: OpSite, name: str) -> OpSite:
    """The last operation gives what was seen to be bad."""
    if not name or not site.outputs:
        return site
    outputs = [msgspec.structs.replace(site.outputs[0], name=name), *site.outputs[1:]]
    return msgspec.structs.replace(site, outputs=outputs)
