"""What a breakpoint waits for: typed conditions over one update, their text and their verdict.

Pure data and functions. Nothing here is evaluated as a language: `parsing` builds these nodes,
`judge` compares numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from tuimon.model.units import number

# What each name stands for; the help of the command line and of the viewer is made of it.
QUANTITIES = {
    "step": "index of the update",
    "loss": "what backward saw, summed where the backward calls of an update add up",
    "grad_norm": "total gradient norm, before clipping",
    "lr": "learning rate of the first param_group; lr/1 is that of the second",
    "loss_scale": "the GradScaler's scale",
}
KINDS = {"nan": "NaN", "inf": "+Inf or -Inf", "non_finite": "either"}
GRAD, WEIGHT, UPDATE, OUTPUT, LOSS = "grad", "weight", "update", "output", "loss"
MEASURES = {
    GRAD: ("norm",),
    WEIGHT: ("norm", "absmax"),
    UPDATE: ("ratio",),
    OUTPUT: ("absmax", "mean", "rms", "zero_frac"),
}
LAYER_WORDS = {
    GRAD: "of any of these layers' gradients, before clipping",
    WEIGHT: "of any of these parameters, before the update",
    UPDATE: "update to weight, of the newest sample of any of these parameters",
    OUTPUT: "of what any of these modules gave in a training forward",
}
HOLDERS = (GRAD, WEIGHT, OUTPUT)  # what `in` may be followed by, with a pattern
RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


class Compare(msgspec.Struct, frozen=True):
    """`grad_norm > 1000`."""

    quantity: str
    relation: str
    value: float
    group: int = 0  # of the learning rate


class Contains(msgspec.Struct, frozen=True):
    """`nan in "blocks.3.*"`; `what` is "loss" or one of `HOLDERS`."""

    kind: str
    what: str
    pattern: str = ""


class Layer(msgspec.Struct, frozen=True):
    """`output "encoder.4" absmax > 10000`: true when any layer of the pattern is so."""

    what: str
    pattern: str
    measure: str
    relation: str
    value: float


class Not(msgspec.Struct, frozen=True):
    """The opposite; of what is not known, still not known."""

    part: Condition


class And(msgspec.Struct, frozen=True):
    """All of two or more."""

    parts: tuple[Condition, ...]


class Or(msgspec.Struct, frozen=True):
    """Any of two or more."""

    parts: tuple[Condition, ...]


Test = Compare | Contains | Layer
Condition = Test | Not | And | Or


def tests_of(condition: Condition) -> list[Test]:
    """The comparisons it is made of, from left to right."""
    if isinstance(condition, Not):
        return tests_of(condition.part)
    if isinstance(condition, And | Or):
        return [test for part in condition.parts for test in tests_of(part)]
    return [condition]


# --- text ---------------------------------------------------------------------------------------


def written(condition: Condition) -> str:
    """The text that `parsing.parse` turns into the same condition."""
    match condition:
        case Compare(quantity, relation, value, group):
            return f"{quantity}{f'/{group}' if group else ''} {relation} {_number(value)}"
        case Contains(kind, what, pattern):
            if what == LOSS:
                return f"{kind} in loss"
            return f"{kind} in {'' if what == GRAD else what + ' '}{_quoted(pattern)}"
        case Layer(what, pattern, measure, relation, value):
            return f"{what} {_quoted(pattern)} {measure} {relation} {_number(value)}"
        case Not(part):
            return f"not {_inside(part, And | Or)}"
        case And(parts):
            return " and ".join(_inside(part, And | Or) for part in parts)
        case Or(parts):
            return " or ".join(_inside(part, Or) for part in parts)


def _inside(part: Condition, binds_less: type | object) -> str:
    text = written(part)
    return f"({text})" if isinstance(part, binds_less) else text  # type: ignore[arg-type]


def _quoted(pattern: str) -> str:
    quote = "'" if '"' in pattern else '"'
    return f"{quote}{pattern}{quote}"


def _number(value: float) -> str:
    """As short as it can be read back exactly: 1e3 is 1000, and 1e9 stays 1e9."""
    found = [repr(value)]
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        found.append(str(int(value)))
        short = f"{value:g}".replace("e+0", "e").replace("e+", "e")
        found += [short] if float(short) == value and abs(value) >= 1e5 else []
    return min(reversed(found), key=len)


def covers(pattern: str, name: str) -> bool:
    """Whether a pattern stands for a layer: `*` and `?` as in a shell, a module for all below it.

    Takes time in proportion to both lengths, whatever a stranger writes.
    """
    if name == pattern or name.startswith(pattern + "."):
        return True
    at, star, back = 0, -1, 0
    place = 0
    while place < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, back, at = at, place, at + 1
        elif at < len(pattern) and pattern[at] in ("?", name[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            back += 1
            at, place = star + 1, back
        else:
            return False
    return not pattern[at:].strip("*")


# --- verdict ------------------------------------------------------------------------------------


class Readings(Protocol):
    """What is known of one update. None is "not known", which is never taken for a number."""

    def value(self, quantity: str, group: int) -> float | None:
        """One of `QUANTITIES`."""
        ...

    def layers(self, test: Layer) -> Iterable[tuple[str, float]] | None:
        """(name, measure) of the layers of a pattern."""
        ...

    def holders(self, test: Contains) -> Iterable[str] | None:
        """Names of what holds such a value."""
        ...


class Verdict(msgspec.Struct, frozen=True):
    """Whether a condition holds; None when that is not known.

    Attributes:
        seen: what made it so, for a person: "grad_norm = 1532".
    """

    holds: bool | None
    seen: tuple[str, ...] = ()


def judge(condition: Condition, readings: Readings) -> Verdict:
    """Compare, with three truth values: what is not known decides nothing.

    A NaN compares as false with everything but `!=`, as everywhere; `nan in loss` finds it.
    """
    if isinstance(condition, Not):
        found = judge(condition.part, readings)
        return Verdict(None if found.holds is None else not found.holds)
    if isinstance(condition, And | Or):
        decides = isinstance(condition, Or)
        parts = [judge(part, readings) for part in condition.parts]
        verdicts = [part.holds for part in parts]
        if decides in verdicts:
            holds: bool | None = decides
        else:
            holds = None if None in verdicts else not decides
        seen = tuple(word for part in parts if part.holds for word in part.seen)
        return Verdict(holds, seen if holds else ())
    found = _judge_test(condition, readings)
    return found if found.holds else Verdict(found.holds)


def _judge_test(test: Test, readings: Readings) -> Verdict:
    if isinstance(test, Compare):
        value = readings.value(test.quantity, test.group)
        if value is None:
            return Verdict(None)
        name = f"{test.quantity}/{test.group}" if test.group else test.quantity
        holds = RELATIONS[test.relation](value, test.value)
        # The step stands in the sentence already.
        return Verdict(holds, () if name == "step" else (f"{name} = {number(value)}",))
    if isinstance(test, Contains):
        names = readings.holders(test)
        if names is None:
            return Verdict(None)
        names = list(names)
        return Verdict(bool(names), (f"{KINDS[test.kind]} in {_few(names)}",))
    known = readings.layers(test)
    if known is None:
        return Verdict(None)
    compare = RELATIONS[test.relation]
    hits = [(name, value) for name, value in known if compare(value, test.value)]
    words = _few([f"{name} {test.measure} = {number(value)}" for name, value in hits])
    return Verdict(bool(hits), (f"{test.what} {words}",))


def _few(words: list[str]) -> str:
    more = len(words) - 1
    return "" if not words else words[0] + (f" and {more:,} more" if more else "")
