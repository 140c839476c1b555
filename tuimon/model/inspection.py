"""What a look at one layer of a held or running training found, element by element where it counts.

Wire rules are those of `model.records`; everything here is bounded, whatever the layer's size.
"""

from __future__ import annotations

import msgspec

from tuimon.model.samples import Histogram
from tuimon.model.wire import Record

MAX_TENSORS = 12  # of one reply: parameters, gradients and outputs together
MAX_INSPECTIONS = 8  # replies that a reader keeps
MAX_PLACES = 8  # positions of non-finite elements, and outliers, that are named
PERCENTILES = (0.1, 1.0, 5.0, 25.0, 50.0, 75.0, 95.0, 99.0, 99.9)


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One element: where it stands and what it is."""

    index: list[int]
    value: float


class Inspected(msgspec.Struct, frozen=True, array_like=True):
    """One tensor.

    Attributes:
        what: "parameter", "gradient" or "output".
        name: as in the `LayerTable`, or the module's path.
        source: what moment it shows: "now", "run again", or "sampled at step 100".
        nan, posinf, neginf, zeros: exact counts; None where they were not counted.
        minimum, maximum, mean, std: of the finite elements, in double precision.
        absmax: largest magnitude of them; rms: root of their mean square.
        percentiles: one for each of `PERCENTILES`, of `counted` finite elements.
        counted: how many elements percentiles and histogram are of, evenly spread; 0 for none.
        histogram: magnitudes by sign; None where there is none.
        bad: the first elements that are not finite, in order of their index.
        outliers: the finite elements of largest magnitude, largest first.
        note: what a reader must know, such as a loss scale or a local shard.
    """

    what: str
    name: str
    source: str = "now"
    shape: list[int] = []
    dtype: str = ""
    device: str = ""
    numel: int = 0
    nan: int | None = None
    posinf: int | None = None
    neginf: int | None = None
    zeros: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    absmax: float | None = None
    rms: float | None = None
    percentiles: list[float] = []
    counted: int = 0
    histogram: Histogram | None = None
    bad: list[Place] = []
    outliers: list[Place] = []
    note: str = ""


class InspectReply(Record, frozen=True, array_like=True, tag=71):
    """The answer to `Inspect`.

    Attributes:
        id: of the request.
        step: index of the update that comes next.
        layer: what was asked for, as in the `LayerTable`, or a module's path.
        kind: class of the module; "" for a parameter alone.
        items: parameters with their gradients, then outputs; at most `MAX_TENSORS`.
        notes: what is missing, and why.
        took_s: how long the look took.
    """

    id: str
    step: int
    layer: str
    kind: str = ""
    items: list[Inspected] = []
    notes: list[str] = []
    took_s: float = 0.0
