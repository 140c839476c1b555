"""What a breakpoint may compare: the figures of one update, read without making a device wait.

In host memory they are those of the update that is about to be made; on a device those that have
arrived, of an update or two before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from tuimon.model.conditions import (
    GRAD,
    LOSS,
    OUTPUT,
    UPDATE,
    Compare,
    Condition,
    Contains,
    Layer,
    Test,
    covers,
    tests_of,
)
from tuimon.model.records import (
    NAN,
    NEG_INF,
    NO_GRAD,
    NON_FINITE,
    POS_INF,
    UNMEASURED,
    DeviceStats,
    loss_of,
)
from tuimon.model.samples import Activation, ParameterSample
from tuimon.train.account import Losses
from tuimon.train.control.outputs import named_modules, names_output
from tuimon.train.control.rates import in_force
from tuimon.train.samples.spectrum import absmax_of, norms_of
from tuimon.train.stats import Flags, Floats, flags_of, measurable

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

_BITS = {"nan": NAN, "inf": POS_INF | NEG_INF, "non_finite": NON_FINITE}
_covers = functools.lru_cache(1 << 16)(covers)  # the same names at every update
_MISSING = NO_GRAD | UNMEASURED


class Readings:
    """One update in host memory, when its gradients are final.

    Attributes:
        step: index of the update that everything here is of.
    """

    def __init__(
        self,
        observer: Observer,
        track: Track,
        losses: Losses,
        activations: Sequence[Activation],
        samples: dict[str, ParameterSample],
    ) -> None:
        self.step = observer.roster.next_step()
        self._observer = observer
        self._track = track
        self._loss = losses.last if losses.total is None else losses.total
        self._activations = activations
        self._samples = samples

    def value(self, quantity: str, group: int) -> float | None:
        """A figure of the run; None where it is not known in host memory."""
        track, measured = self._track, self._track.update.measured
        if quantity == "step":
            return float(self.step)
        if quantity == "loss":
            return self._loss
        if quantity == "grad_norm":
            return None if measured is None else measured.total
        if quantity == "loss_scale":
            return self._observer.scale_of(track)
        return rate_of(self._observer, track, group)

    def layers(self, test: Layer) -> Iterable[tuple[str, float]] | None:
        """A measure of everything that a pattern names; None where nothing was measured."""
        if test.what == GRAD:
            measured = self._track.update.measured
            if measured is None:
                return None
            return _norms(self._names(), measured.norms, measured.flags, test.pattern)
        if test.what == OUTPUT:
            return _of_outputs(self._activations, test)
        if test.what == UPDATE:
            fresh = [
                (name, sample.update_ratio)
                for name, sample in self._samples.items()
                if sample.update_ratio is not None and _covers(test.pattern, name)
            ]
            return fresh or None
        return self._weights(test)

    def holders(self, test: Contains) -> Iterable[str] | None:
        """Names of what holds such a value; None where nobody looked."""
        bits = _BITS[test.kind]
        if test.what == LOSS:
            return None if self._loss is None else ["loss"] if _kind(self._loss) & bits else []
        if test.what == GRAD:
            measured = self._track.update.measured
            if measured is None:
                return None
            return _flagged(self._names(), measured.flags, bits, test.pattern)
        if test.what == OUTPUT:
            found = _of_outputs(self._activations, Layer(OUTPUT, test.pattern, "absmax", ">", 0))
            return None if found is None else [name for name, value in found if _kind(value) & bits]
        return [name for name, values in self._params(test.pattern) if flags_of(values) & bits]

    def _names(self) -> Sequence[str]:
        return self._track.plan.names

    def _weights(self, test: Layer) -> list[tuple[str, float]] | None:
        found = list(self._params(test.pattern))
        if not found:
            return None
        with torch.no_grad():
            if test.measure == "norm":
                sizes = norms_of([values for _, values in found])
            else:
                sizes = [absmax_of(values) for _, values in found]
        return [(name, size) for (name, _), size in zip(found, sizes, strict=True)]

    def _params(self, pattern: str) -> Iterator[tuple[str, torch.Tensor]]:
        plan = self._track.plan
        for name, param in zip(plan.names, plan.params, strict=True):
            if _covers(pattern, name) and param.device.type == "cpu":
                values = measurable(param)
                if values is not None:
                    yield name, values


class LateReadings:
    """An update on a device, by what has arrived of it."""

    def __init__(self, observer: Observer, track: Track, stats: DeviceStats) -> None:
        self.step = stats.step
        self._observer = observer
        self._track = track
        self._stats = stats
        self._flags: Flags | None = np.frombuffer(stats.flags, np.uint8) if stats.flags else None

    def value(self, quantity: str, group: int) -> float | None:
        """A figure of that update; the learning rate is the present one."""
        if quantity == "step":
            return float(self.step)
        if quantity == "loss":
            return loss_of(self._stats)
        if quantity == "grad_norm":
            return self._stats.grad_norm
        if quantity == "loss_scale":
            return self._stats.loss_scale
        return rate_of(self._observer, self._track, group)

    def layers(self, test: Layer) -> Iterable[tuple[str, float]] | None:
        """Gradient norms; nothing else comes from a device."""
        names = self._names()
        if test.what != GRAD or names is None:
            return None
        return _norms(names, np.frombuffer(self._stats.norms, "<f4"), self._flags, test.pattern)

    def holders(self, test: Contains) -> Iterable[str] | None:
        """By the loss and by the flags of the gradients."""
        bits = _BITS[test.kind]
        if test.what == LOSS:
            loss = loss_of(self._stats)
            return None if loss is None else ["loss"] if _kind(loss) & bits else []
        names = self._names()
        if test.what != GRAD or names is None:
            return None
        return _flagged(names, self._flags, bits, test.pattern)

    def _names(self) -> Sequence[str] | None:
        """Of the table that the record speaks of; None when it is no longer the present one."""
        table = self._observer.roster.layers.table
        fits = table.epoch == self._stats.epoch and len(self._stats.norms) == 4 * len(table.names)
        return table.names if fits else None


def rate_of(observer: Observer, track: Track, group: int) -> float | None:
    """The learning rate that a param_group's next update has."""
    optimizer = track.optimizer
    if optimizer is None or group >= len(optimizer.param_groups):
        return None
    return observer.rates.effective(track.index, group, in_force(optimizer)[group])


def sampled_by(
    known: dict[str, ParameterSample], step: int, items: Iterable[ParameterSample]
) -> None:
    """Keep what a sample of the extras has found, until an update is judged."""
    known.update((item.name, item) for item in items)


def unreadable(condition: Condition, observer: Observer, track: Track) -> str:
    """Why a condition can never be judged in this training; "" when it can."""
    if observer.inside.lead is not None:
        return "the optimizers step inside backward, where no breakpoint can hold them"
    for test in tests_of(condition):
        if reason := _unreadable_test(test, observer, track):
            return reason
    return ""


def _unreadable_test(test: Test, observer: Observer, track: Track) -> str:
    roster = observer.roster
    primary = roster.primary or track
    if isinstance(test, Compare):
        optimizer = primary.optimizer
        groups = len(optimizer.param_groups) if optimizer is not None else 0
        if test.quantity == "lr" and test.group >= groups:
            return f"no param_group {test.group}; there are {groups}"
        return ""
    if test.what == LOSS:
        return ""
    if test.what == OUTPUT:
        found = [
            module
            for prefix, root in roster.roots()
            for _, module in named_modules(root, prefix, [test.pattern])
        ]
        if not found:
            return f"no module {test.pattern!r} can be looked at; a compiled or scripted one cannot"
        params: list[torch.Tensor] = [each for module in found for each in module.parameters()]
    else:
        names = roster.layers.table.names
        if not any(_covers(test.pattern, name) for name in names):
            return f"no layer {test.pattern!r}; names are as in the layer table"
        if test.what == GRAD:
            return ""
        params = [
            param
            for each in roster.tracks.values()
            for name, param in zip(each.plan.names, each.plan.params, strict=True)
            if _covers(test.pattern, name)
        ]
    away = next((str(param.device) for param in params if param.device.type != "cpu"), "")
    if away:
        return (
            f"what {test.what} {test.pattern!r} holds lies on {away}, and reading it would make "
            "the device wait; loss, grad_norm and what gradients hold is judged there, one update "
            "late"
        )
    return ""


def _norms(
    names: Sequence[str], norms: Floats, flags: Flags | None, pattern: str
) -> list[tuple[str, float]]:
    return [
        (name, float(norms[place]))
        for place, name in enumerate(names)
        if _covers(pattern, name) and not (flags is not None and flags[place] & _MISSING)
    ]


def _flagged(names: Sequence[str], flags: Flags | None, bits: int, pattern: str) -> list[str]:
    if flags is None:
        return []
    bad: list[int] = np.flatnonzero(flags & bits).tolist()
    return [names[place] for place in bad if _covers(pattern, names[place])]


def _of_outputs(activations: Sequence[Activation], test: Layer) -> list[tuple[str, float]] | None:
    """A measure of each output, or None when no such module was called."""
    found = [
        (each.module, value)
        for each in activations
        if names_output(test.pattern, each.module)
        and (value := getattr(each, test.measure)) is not None
    ]
    return found or None


def _kind(value: float) -> int:
    if math.isnan(value):
        return NAN
    return 0 if math.isfinite(value) else POS_INF | NEG_INF
