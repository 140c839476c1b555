"""A look at one tensor as words and values, for every reader. Pure; draws nothing."""

from __future__ import annotations

from typing import NamedTuple

from tuimon.model.inspection import PERCENTILES, Inspected, InspectReply, Place
from tuimon.model.text import plain
from tuimon.model.units import count, number, percent

NAMED_PERCENTILES = (1.0, 25.0, 50.0, 75.0, 99.0)
SCREEN = 400


class Figure(NamedTuple):
    """One line: a word, its value, and whether it is bad news."""

    word: str
    value: str
    is_bad: bool = False


def headline(reply: InspectReply) -> str:
    """What was looked at, and when."""
    kind = f" ({plain(reply.kind, 60)})" if reply.kind else ""
    return f"{plain(reply.layer, 200)}{kind} before update {reply.step:,}"


def title_of(item: Inspected) -> str:
    """Which tensor, and what moment it shows."""
    source = "" if item.source == "now" else f", {plain(item.source, 60)}"
    return f"{plain(item.what, 20)} {plain(item.name, 200)}{source}"


def figures(item: Inspected) -> list[Figure]:
    """Everything about one tensor, most telling first; what is not known is left out."""
    found = [Figure("shape", _shape(item))]
    if item.nan is not None:
        found.append(_finite(item))
    if item.minimum is not None:
        found.append(Figure("range", f"{number(item.minimum)} … {number(item.maximum)}"))
    if item.mean is not None:
        std = "" if item.std is None else f" ± {number(item.std)}"
        found.append(Figure("mean", f"{number(item.mean)}{std}"))
    if item.absmax is not None:
        rms = "" if item.rms is None else f", rms {number(item.rms)}"
        found.append(Figure("absmax", f"{number(item.absmax)}{rms}"))
    if item.zeros is not None and item.numel:
        found.append(Figure("zeros", f"{count(item.zeros)} ({percent(item.zeros / item.numel)})"))
    if len(item.percentiles) == len(PERCENTILES):
        known = dict(zip(PERCENTILES, item.percentiles, strict=True))
        words = "  ".join(f"{at:g}% {number(known[at], 3)}" for at in NAMED_PERCENTILES)
        found.append(Figure("spread", words))
    if item.bad:
        found.append(Figure("bad at", _places(item.bad), True))
    if item.outliers:
        found.append(Figure("largest", _places(item.outliers)))
    if item.note:
        found.append(Figure("note", plain(item.note, SCREEN)))
    return found


def _shape(item: Inspected) -> str:
    sizes = " × ".join(map(str, item.shape[:16])) or ("" if item.shape == [] else "scalar")
    place = f", {plain(item.device, 20)}" if item.device not in ("", "cpu") else ""
    words = f"{plain(item.dtype, 20)}{place}, {count(item.numel)} elements"
    return f"{sizes} {words}".strip()


def _finite(item: Inspected) -> Figure:
    counts = (("NaN", item.nan), ("+Inf", item.posinf), ("-Inf", item.neginf))
    bad = [f"{count(value)} {word}" for word, value in counts if value]
    return Figure("finite", f"no: {', '.join(bad)}" if bad else "all", bool(bad))


def _places(places: list[Place]) -> str:
    return "  ".join(
        f"[{', '.join(map(str, each.index[:16]))}] {number(each.value)}" for each in places[:16]
    )
