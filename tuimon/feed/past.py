"""What was seen before now of readings, batches, samples and bad tensors: bounded, thinned by age.

A full list loses every second entry of its older half, so that the whole time stays covered and
the newest part stays complete. Belongs to the thread that applies records.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from tuimon.model.records import Batch, Step, System
from tuimon.model.samples import Activation, Activations, Histogram, ParameterSample
from tuimon.model.samples import ParameterSamples as Parameters

MAX_READINGS = 900  # a quarter of an hour at one a second
MAX_BATCHES = 200
ALL_PARAMETERS = 40_000  # entries of all names together, some 200 bytes each
ALL_ACTIVATIONS = 20_000
ALL_HISTOGRAMS = 4_000  # some 700 bytes each
ALL_BAD = 20_000
MOST, FEWEST = 400, 4  # entries of one name

Entry = TypeVar("Entry")


class BadCount(NamedTuple):
    """Exact counts of one tensor at one step."""

    step: int
    what: str
    nan: int
    posinf: int
    neginf: int
    numel: int

    @property
    def total(self) -> int:
        return self.nan + self.posinf + self.neginf


def thin(entries: list[Entry]) -> None:
    """Drop every second entry of the older half; the first stays."""
    half = len(entries) // 2
    entries[:half] = entries[:half:2]


def ends_of(entries: Sequence[Entry], most: int, *, first: int = 8) -> list[Entry]:
    """At most so many entries: the first few and the newest."""
    whole = list(entries)
    return whole if len(whole) <= most else [*whole[:first], *whole[len(whole) - most + first :]]


class Lists(Generic[Entry]):
    """Entries by name in order of their steps, all of them within one bound."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._lists: OrderedDict[str, list[tuple[int, Entry]]] = OrderedDict()

    def add(self, name: str, step: int, entry: Entry) -> None:
        """Add the newest entry of a name; one that is known, or older than it, stays away."""
        found = self._lists.setdefault(name, [])
        if found and step <= found[-1][0]:
            return
        found.append((step, entry))
        self._lists.move_to_end(name)
        limit = max(FEWEST, min(MOST, self._total // len(self._lists)))
        while len(found) > limit:
            thin(found)
        while len(self._lists) * FEWEST > self._total:
            self._lists.popitem(last=False)

    def of(self, name: str) -> Sequence[tuple[int, Entry]]:
        """(step, entry) of a name, oldest first."""
        return self._lists.get(name, ())

    def cut(self, step: int) -> None:
        """Forget `step` and everything after it."""
        for name, entries in list(self._lists.items()):
            kept = [each for each in entries if each[0] < step]
            if kept:
                self._lists[name] = kept
            else:
                del self._lists[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)


class Past:
    """The history behind the newest readings.

    Attributes:
        version: grows with every change.
    """

    def __init__(self, *, share: float = 1.0) -> None:
        """`share` of the usual bounds of what is sampled."""
        self.version = 0
        self._readings: deque[System] = deque(maxlen=MAX_READINGS)
        self._batches: list[Batch] = []
        self._parameters: Lists[ParameterSample] = Lists(int(share * ALL_PARAMETERS))
        self._activations: Lists[Activation] = Lists(int(share * ALL_ACTIVATIONS))
        self._histograms: Lists[Histogram] = Lists(int(share * ALL_HISTOGRAMS))
        self._bad: Lists[BadCount] = Lists(int(share * ALL_BAD))

    def see(self, record: object) -> None:
        """Take in whatever has a place here."""
        match record:
            case System():
                self._readings.append(record)
            case Batch():
                self._batches.append(record)
                if len(self._batches) > MAX_BATCHES:
                    thin(self._batches)
            case Parameters():
                for item in record.items:
                    self._parameters.add(item.name, record.step, item)
            case Activations():
                for each in record.items:
                    self._activations.add(each.module, record.step, each)
            case Histogram():
                self._histograms.add(f"{record.what} {record.name}", record.step, record)
            case Step() if record.bad:
                for bad in record.bad:
                    counts = BadCount(
                        record.step, bad.what, bad.nan, bad.posinf, bad.neginf, bad.numel
                    )
                    self._bad.add(bad.name, record.step, counts)
            case _:
                return
        self.version += 1

    def cut(self, step: int) -> None:
        """Forget `step` and everything after it: the run was taken up again from there."""
        self._batches = [batch for batch in self._batches if batch.step < step]
        for lists in (self._parameters, self._activations, self._histograms, self._bad):
            lists.cut(step)
        self.version += 1

    def samples(self) -> list[Parameters | Activations | Histogram]:
        """Records that bring another reader to the same knowledge of samples, oldest first."""
        parameters: dict[int, list[ParameterSample]] = {}
        for name in self._parameters:
            for step, item in self._parameters.of(name):
                parameters.setdefault(step, []).append(item)
        activations: dict[int, list[Activation]] = {}
        for name in self._activations:
            for step, each in self._activations.of(name):
                activations.setdefault(step, []).append(each)
        found: list[Parameters | Activations | Histogram] = [
            Parameters(step, 0, items) for step, items in parameters.items()
        ]
        found += [Activations(step, items) for step, items in activations.items()]
        for name in self._histograms:
            found += [each for _, each in self._histograms.of(name)]
        return sorted(found, key=lambda record: record.step)

    @property
    def readings(self) -> Sequence[System]:
        """Readings about a second apart, oldest first."""
        return self._readings

    @property
    def batches(self) -> Sequence[Batch]:
        """Batches that were looked at, oldest first."""
        return self._batches

    def parameter(self, name: str) -> Sequence[tuple[int, ParameterSample]]:
        """(step, sample) of a parameter, oldest first."""
        return self._parameters.of(name)

    def activation(self, module: str) -> Sequence[tuple[int, Activation]]:
        """(step, sample) of a module's outputs, oldest first."""
        return self._activations.of(module)

    def histograms(self, what: str, name: str) -> Sequence[tuple[int, Histogram]]:
        """(step, histogram) of a "weight", "gradient" or "activation", oldest first."""
        return self._histograms.of(f"{what} {name}")

    def bad(self, name: str) -> Sequence[tuple[int, BadCount]]:
        """(step, counts) of a tensor where it was not finite, oldest first."""
        return self._bad.of(name)
