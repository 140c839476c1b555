"""Puts together what several engines found about one step. Plain data; runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tuimon.model.autopsy import (
    LEAF,
    MAX_MODULES,
    MAX_PATH,
    NOT_REPRODUCED,
    OPERATION,
    UNKNOWN,
    ModuleState,
    OpSite,
    PoisonedLeaf,
)
from tuimon.train.autopsy.poison import Poison

MAX_NOTES = 12
GRAPH = "G"
MODEL = "M"
CLOSURE = "R"
FRAMES = "F"


@dataclass
class Part:
    """What one engine says.

    Attributes:
        engine: its letter; "" for the trace of an update.
        is_weak: named by elimination only.
        loss_code: the model is innocent: what is bad came from outside of it.
        passed_on: it ends at an input that another part of the training has computed.
        poison: tensors from outside of the graph that may be all that is wrong.
    """

    engine: str
    verdict: str = UNKNOWN
    first: OpSite | None = None
    leaves: Sequence[PoisonedLeaf] = ()
    path: Sequence[OpSite] = ()
    modules: Sequence[ModuleState] = ()
    constants: Sequence[str] = ()
    notes: Sequence[str] = ()
    upstream: Sequence[str] = ()
    is_weak: bool = False
    loss_code: bool = False
    passed_on: bool = False
    bad_grads: Sequence[str] = field(default_factory=tuple)
    poison: Sequence[Poison] = ()

    @property
    def names_something(self) -> bool:
        """Whether it says what went wrong."""
        return self.verdict in (OPERATION, LEAF)


def part_of(engine: str, found: Any) -> Part:
    """What an engine returned, whichever it was."""
    return Part(
        engine=engine,
        verdict=found.verdict,
        first=found.first,
        leaves=list(found.leaves),
        path=list(found.path),
        modules=list(getattr(found, "modules", ())),
        constants=list(found.constants),
        notes=list(found.notes),
        upstream=list(getattr(found, "upstream", ())),
        is_weak=bool(getattr(found, "by_elimination", False)),
        loss_code=bool(getattr(found, "loss_code", False)),
        bad_grads=list(getattr(found, "bad_grads", ())),
        poison=list(getattr(found, "poison", ())),
    )


def merge(parts: Sequence[Part]) -> dict[str, Any]:
    """The fields of an `Autopsy` that engines fill.

    A re-run sees every operation and outweighs the graph, unless it finds the model innocent;
    what the graph says of the way from the model to the loss completes the path.
    """
    if not parts:
        return {"verdict": UNKNOWN}
    chosen = max(parts, key=_weight)
    others = [part for part in parts if part is not chosen]
    agreeing = [part for part in others if part.names_something and _agree(part, chosen)]
    stands = [chosen, *agreeing]
    stands += [part for part in others if part.loss_code and part not in stands]
    modules = next((part.modules for part in parts if part.modules), ())
    path = list(chosen.path)
    if chosen.engine == MODEL:
        path += [
            site
            for part in others
            if part.engine == GRAPH
            for site in part.path
            if not site.in_model
        ]
    notes: list[str] = []
    for part in [chosen, *others]:
        notes += [note for note in part.notes if note not in notes]
    return {
        "engine": "+".join(_letters(stands)),
        "verdict": _verdict(chosen, parts),
        "first": chosen.first,
        "leaves": list(chosen.leaves),
        "path": path[:MAX_PATH],
        "modules": list(modules)[:MAX_MODULES],
        "constants": list(dict.fromkeys(name for p in stands for name in p.constants)),
        "notes": notes[:MAX_NOTES],
        "upstream": list(chosen.upstream)[:MAX_PATH],
    }


def _letters(parts: Sequence[Part]) -> dict[str, None]:
    return dict.fromkeys(letter for part in parts for letter in part.engine.split("+") if letter)


def _weight(part: Part) -> tuple[bool, bool, int, bool]:
    re_run = 2 if FRAMES in part.engine else int(part.engine in (MODEL, CLOSURE, ""))
    accuses = part.names_something and not part.loss_code and not part.passed_on
    return accuses, not part.is_weak, re_run, part.loss_code


def _agree(part: Part, chosen: Part) -> bool:
    if part.first is None or chosen.first is None:
        return part.verdict == chosen.verdict
    return part.first.op.removesuffix("_") == chosen.first.op.removesuffix("_")


def _verdict(chosen: Part, parts: Sequence[Part]) -> str:
    if chosen.names_something and not chosen.loss_code:
        return chosen.verdict
    if any(part.verdict == NOT_REPRODUCED for part in parts):
        return NOT_REPRODUCED
    return UNKNOWN
