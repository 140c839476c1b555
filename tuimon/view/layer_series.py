"""One layer over time, as series that a chart can draw: its norm, its samples, its bad elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from tuimon.feed.past import Past
from tuimon.model.records import NAN, NEG_INF, POS_INF
from tuimon.view.frame import (
    HAS_NAN,
    HAS_NEG_INF,
    HAS_POS_INF,
    Envelope,
    HeatView,
    SeriesView,
)
from tuimon.view.series import Series

NORM = "its gradient norm"
UPDATE = "its update ratio"
WEIGHT = "its weight absmax"
GRADIENT = "its gradient absmax"
OUTPUT = "its output absmax"
BAD = "its NaN and Inf"
NAMES = (NORM, UPDATE, WEIGHT, GRADIENT, OUTPUT, BAD)
_SEARCHED_STEPS = 8192

Entry = TypeVar("Entry")


class NormSeries:
    """The norm of a layer as the heat map knows it: to half an octave, the largest of a group."""

    def __init__(self, heat: HeatView, members: Sequence[int]) -> None:
        self.name = NORM
        self._heat = heat
        self._members = tuple(members)

    @property
    def version(self) -> int:
        return self._heat.version

    @property
    def count(self) -> int:
        first, last = self.first_step, self.last_step
        return 0 if first is None or last is None else last - first + 1

    @property
    def first_step(self) -> int | None:
        return self._heat.first_step

    @property
    def last_step(self) -> int | None:
        return self._heat.last_step

    @property
    def last(self) -> float | None:
        """The largest norm of the newest step; what is not finite goes first."""
        below = [index for index in self._members if index < len(self._heat.latest_norm())]
        if not below:
            return None
        bits = int(np.bitwise_or.reduce(self._heat.latest_flags()[below]))
        for bit, value in ((NAN, np.nan), (POS_INF, np.inf), (NEG_INF, -np.inf)):
            if bits & bit:
                return float(value)
        norms = self._heat.latest_norm()[below]
        return float(np.nanmax(norms)) if np.isfinite(norms).any() else None

    @property
    def ema(self) -> float | None:
        return None

    @property
    def minimum(self) -> float | None:
        return None

    @property
    def maximum(self) -> float | None:
        return None

    def envelope(self, first_step: int, end_step: int, columns: int) -> Envelope:
        """The window; a column holds the largest norm only."""
        norms, bits = self._heat.norms(self._members, first_step, end_step, columns)
        return Envelope(norms, norms, norms, bits)

    def non_finite_near(self, step: int, *, forward: bool) -> int | None:
        """The nearest step beyond `step` where NaN or Inf begin, among the nearest thousands."""
        first, last = self.first_step, self.last_step
        if first is None or last is None:
            return None
        start = max(first, step + 1) if forward else max(first, step - _SEARCHED_STEPS)
        end = min(last + 1, start + _SEARCHED_STEPS) if forward else min(last + 1, step)
        if end <= start:
            return None
        _, bits = self._heat.norms(self._members, start - 1, end, end - start + 1)
        is_bad = (bits & (HAS_NAN | HAS_POS_INF | HAS_NEG_INF)) != 0
        found = np.flatnonzero(is_bad[1:] & ~is_bad[:-1])
        if not len(found):
            return None
        return start + int(found[0] if forward else found[-1])


class LayerSeries:
    """The series of the layer that is looked at; made anew when it, or what is known, changes."""

    def __init__(self) -> None:
        self._made_of: tuple[object, ...] | None = None
        self._series: dict[str, SeriesView] = {}

    def of(
        self,
        path: str,
        members: Sequence[int],
        *,
        is_parameter: bool,
        heat: HeatView | None,
        past: Past | None,
    ) -> dict[str, SeriesView]:
        """By name; what was never measured is missing."""
        made_of = (path, id(heat), id(past), past.version if past else 0)
        if made_of != self._made_of:
            self._made_of = made_of
            self._series = {}
            if heat is not None:
                self._series[NORM] = NormSeries(heat, members)
            if past is not None:
                self._series |= _sampled(path, past, is_parameter=is_parameter)
        return self._series


def module_of(path: str, *, is_parameter: bool) -> str:
    """The module whose outputs belong to a row of the tree."""
    return path.rpartition(".")[0] if is_parameter else path


def _sampled(path: str, past: Past, *, is_parameter: bool) -> dict[str, SeriesView]:
    found: dict[str, SeriesView] = {}
    if is_parameter:
        samples = past.parameter(path)
        found |= _series(UPDATE, samples, lambda item: item.update_ratio)
        found |= _series(WEIGHT, samples, lambda item: item.weight_absmax)
        found |= _series(GRADIENT, samples, lambda item: item.grad_absmax)
        found |= _series(BAD, past.bad(path), lambda item: float(item.total))
    outputs = past.activation(module_of(path, is_parameter=is_parameter))
    return found | _series(OUTPUT, outputs, lambda item: item.absmax)


def _series(
    name: str, entries: Iterable[tuple[int, Entry]], pick: Callable[[Entry], float | None]
) -> dict[str, SeriesView]:
    series = Series(name)
    for step, entry in entries:
        value = pick(entry)
        if value is not None:
            series.append(step, value)
    return {name: series} if series.count or series.last is not None else {}
