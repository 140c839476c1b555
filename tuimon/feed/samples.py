"""The newest sample of every layer, in bounded memory, for viewers and for the history file."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

from tuimon.model.samples import (
    Activation,
    Activations,
    Governor,
    Histogram,
    ParameterSample,
    ParameterSamples,
)

MAX_NAMES = 8192  # of parameters, and of modules; some 100 bytes each
MAX_HISTOGRAMS = 768  # some 600 bytes each
_PER_RECORD = 512

SampleRecord = ParameterSamples | Activations | Histogram

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Samples:
    """What was sampled last, by name. Not shared between threads.

    Attributes:
        governor: newest account of the sampling itself; None before there is one.
        version: grows with every record.
    """

    def __init__(self) -> None:
        self.governor: Governor | None = None
        self.version = 0
        self._parameters: OrderedDict[str, tuple[int, int, ParameterSample]] = OrderedDict()
        self._activations: OrderedDict[str, tuple[int, Activation]] = OrderedDict()
        self._histograms: OrderedDict[tuple[str, str], Histogram] = OrderedDict()

    def add(self, record: SampleRecord | Governor) -> None:
        """Take in one record; what has not been renewed for longest goes when there is no room."""
        self.version += 1
        match record:
            case Governor():
                self.governor = record
            case ParameterSamples():
                for item in record.items:
                    entry = (record.step, record.optimizer, item)
                    _keep(self._parameters, item.name, entry, MAX_NAMES)
            case Activations():
                for each in record.items:
                    _keep(self._activations, each.module, (record.step, each), MAX_NAMES)
            case Histogram():
                _keep(self._histograms, (record.what, record.name), record, MAX_HISTOGRAMS)

    def cut(self, step: int) -> None:
        """Forget `step` of the primary optimizer and everything after it."""
        self.version += 1
        for name in [n for n, entry in self._parameters.items() if entry[0] >= step]:
            del self._parameters[name]
        for name in [n for n, (at, _) in self._activations.items() if at >= step]:
            del self._activations[name]
        for key in [k for k, each in self._histograms.items() if each.step >= step]:
            del self._histograms[key]

    def parameter(self, name: str) -> tuple[int, ParameterSample] | None:
        """(step, newest sample) of a parameter; None while it has none."""
        entry = self._parameters.get(name)
        return None if entry is None else (entry[0], entry[2])

    def activation(self, module: str) -> tuple[int, Activation] | None:
        """(step, newest sample) of a module's outputs; None while it has none."""
        return self._activations.get(module)

    def histogram(self, what: str, name: str) -> Histogram | None:
        """Newest histogram of a "weight", "gradient" or "activation"; None while there is none."""
        return self._histograms.get((what, name))

    def records(self) -> list[SampleRecord]:
        """Records that bring another reader to the same knowledge, oldest first."""
        parameters: dict[tuple[int, int], list[ParameterSample]] = {}
        for step, optimizer, item in self._parameters.values():
            parameters.setdefault((step, optimizer), []).append(item)
        activations: dict[int, list[Activation]] = {}
        for step, each in self._activations.values():
            activations.setdefault(step, []).append(each)
        found: list[SampleRecord] = [
            ParameterSamples(step, optimizer, items[at : at + _PER_RECORD])
            for (step, optimizer), items in parameters.items()
            for at in range(0, len(items), _PER_RECORD)
        ]
        found += [Activations(step, items) for step, items in activations.items()]
        found += self._histograms.values()
        return sorted(found, key=lambda record: record.step)


def _keep(kept: OrderedDict[_Key, _Value], key: _Key, value: _Value, limit: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > limit:
        kept.popitem(last=False)
