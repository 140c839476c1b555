"""Looks at every element of one tensor: counts, extremes, spread, places. Reads only.

Takes time and memory within bounds, whatever the size of the tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from msgspec import structs

from tuimon.model.inspection import MAX_PLACES, PERCENTILES, Inspected, Place
from tuimon.model.samples import Histogram
from tuimon.model.text import plain
from tuimon.train.samples.spectrum import evenly, histogram_of
from tuimon.train.stats import measurable

CHUNK = 1 << 20  # elements at a time, so that a look needs no copy of the tensor
MAX_ELEMENTS = 1 << 25  # of one tensor, some half a second; of a larger one a share is looked at
SHARE = 1 << 20
MAX_DRAWN = 1 << 16  # for percentiles

_HISTOGRAMS = {"parameter": "weight", "gradient": "gradient", "output": "activation"}


@dataclass
class _Tally:
    """What the elements seen so far add up to, in double precision."""

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    count: int = 0  # of finite elements
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    spread: float = 0.0  # sum of squared distances from the mean
    bad: list[int] = field(default_factory=list)
    large: list[tuple[float, int, float]] = field(default_factory=list)  # magnitude, place, value

    def add(self, chunk: torch.Tensor, start: int) -> None:
        """Account for elements whose first one stands at `start`."""
        wide = chunk.to("cpu", torch.float64)
        is_finite = torch.isfinite(wide)
        if not bool(is_finite.all()):
            self.nan += int(torch.isnan(wide).sum())
            self.posinf += int((wide == math.inf).sum())
            self.neginf += int((wide == -math.inf).sum())
            places = torch.nonzero(~is_finite).flatten()[: MAX_PLACES - len(self.bad)]
            self.bad += [start + int(place) for place in places]
        finite = wide[is_finite]
        if not finite.numel():
            return
        self.zeros += int((finite == 0).sum())
        self.low = min(self.low, float(finite.min()))
        self.high = max(self.high, float(finite.max()))
        self._spread(finite)
        sizes = torch.where(is_finite, wide.abs(), -1.0)
        top = torch.topk(sizes, min(MAX_PLACES, sizes.numel()))
        pairs = zip(top.values.tolist(), top.indices.tolist(), strict=True)
        found = [(size, -(start + place), float(wide[place])) for size, place in pairs if size >= 0]
        self.large = sorted([*self.large, *found], reverse=True)[:MAX_PLACES]

    def _spread(self, finite: torch.Tensor) -> None:
        """Means and squares of parts put together without taking large numbers from each other."""
        count, mean = finite.numel(), float(finite.mean())
        squares = float(((finite - mean) ** 2).sum())
        total = self.count + count
        apart = mean - self.mean
        self.spread += squares + apart * apart * self.count * count / total
        self.mean += apart * count / total
        self.count = total


def inspected(
    what: str, name: str, tensor: torch.Tensor, *, source: str = "now", step: int = 0
) -> Inspected:
    """Everything about one tensor.

    Args:
        what: "parameter", "gradient" or "output".
        name: what it is called.
        tensor: of any kind; what cannot be read as numbers is described only.
        source: what moment it shows.
        step: index of the update that comes next.
    """
    head = Inspected(
        what,
        plain(name, 200),
        source,
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        numel=tensor.numel(),
    )
    values, note = _numbers(tensor)
    if values is None:
        return structs.replace(head, note=note)
    if values.numel() > MAX_ELEMENTS:
        part = evenly(values, SHARE)
        if part is None:
            return structs.replace(head, note="too large, and its elements lie apart")
        note = f"{part.numel():,} of {values.numel():,} elements, evenly spread"
        return _described(head, part, None, note, step)
    return _described(head, values, list(values.shape), note, step)


def _described(
    head: Inspected, values: torch.Tensor, shape: list[int] | None, note: str, step: int
) -> Inspected:
    """The head with its figures; places are told where `shape` says what they mean."""
    flat = values.reshape(-1)
    tally = _Tally()
    for start in range(0, flat.numel(), CHUNK):
        tally.add(flat[start : start + CHUNK], start)
    told = structs.replace(
        head,
        nan=tally.nan,
        posinf=tally.posinf,
        neginf=tally.neginf,
        zeros=tally.zeros,
        note=note,
    )
    if shape is not None:
        told = structs.replace(
            told,
            bad=[Place(_index(at, shape), float(flat[at])) for at in tally.bad],
            outliers=[Place(_index(-at, shape), value) for _, at, value in tally.large],
        )
    if not tally.count:
        return told
    drawn = _drawn(flat)
    return structs.replace(
        told,
        minimum=tally.low,
        maximum=tally.high,
        mean=tally.mean,
        std=math.sqrt(tally.spread / tally.count),
        absmax=max(abs(tally.low), abs(tally.high)),
        rms=math.sqrt(tally.spread / tally.count + tally.mean**2),
        percentiles=np.percentile(drawn, PERCENTILES).tolist() if len(drawn) else [],
        counted=len(drawn),
        histogram=_histogram(flat, step, head),
    )


def _numbers(tensor: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """(plain numbers of a tensor, what to know about them)."""
    if tensor.device.type == "meta":
        return None, "a meta tensor holds no values"
    if not tensor.numel():
        return None, "it has no elements"
    values = measurable(tensor)
    note = ""
    if hasattr(tensor, "to_local"):
        note = "the shard of this rank"
    elif tensor.layout is not torch.strided:
        note = "sparse: of its stored values"
    elif tensor.is_complex():
        note = "complex: the last index is 0 for the real part, 1 for the imaginary one"
    elif values is None:
        values = tensor.detach().double()
    return values, note if values is not None else "no values can be read"


def _drawn(flat: torch.Tensor) -> npt.NDArray[np.float64]:
    part = evenly(flat, MAX_DRAWN)
    assert part is not None  # one dimension always can be
    drawn: npt.NDArray[np.float64] = part.to("cpu", torch.float64).numpy()
    return drawn[np.isfinite(drawn)]


def _histogram(flat: torch.Tensor, step: int, head: Inspected) -> Histogram | None:
    values = flat if flat.device.type == "cpu" else flat.cpu()
    return histogram_of(values, step, _HISTOGRAMS[head.what], head.name)


def _index(place: int, shape: list[int]) -> list[int]:
    return [int(each) for each in np.unravel_index(place, shape)] if shape else []
