"""The records of what is looked at only now and then: parameters, activations, histograms.

Wire rules are those of `model.records`. Names stand in the records themselves, because a sample
covers few layers.
"""

from __future__ import annotations

import msgspec

from tuimon.model.wire import Record


class Governor(Record, frozen=True, array_like=True, tag=30):
    """How often sampled extras are taken and what they cost; published with every sample.

    Attributes:
        step: step of the primary optimizer that was sampled last.
        stride: one step in so many is sampled; None when nothing ever is.
        share_frac: what sampling has cost lately as a share of step time; None before it is known.
        budget_frac: the share it may cost.
        note: why there are no samples, or why they cost more than they may; "" otherwise.
    """

    step: int | None = None
    stride: int | None = None
    share_frac: float | None = None
    budget_frac: float = 0.0
    note: str = ""


class ParameterSample(msgspec.Struct, frozen=True, array_like=True):
    """One parameter in a sampled step; what was not measured is None.

    Attributes:
        name: as in the `LayerTable`.
        grad_absmax: largest magnitude of the gradient, unscaled and before clipping.
        weight_absmax: largest magnitude of the weight after the update.
        weight_norm: L2 norm before the update, over the elements that were compared.
        update_ratio: L2 norm of the update divided by `weight_norm`; None without an update.
        compared: how many elements were compared, evenly spread over the parameter.
        changed_frac: share of those that the update changed at all; None without an update.
    """

    name: str
    grad_absmax: float | None = None
    weight_absmax: float | None = None
    weight_norm: float | None = None
    update_ratio: float | None = None
    compared: int = 0
    changed_frac: float | None = None


class ParameterSamples(Record, frozen=True, array_like=True, tag=31):
    """The parameters that were sampled in one update; others have their turn later."""

    step: int
    optimizer: int = 0
    items: list[ParameterSample] = []


class StartingWeights(Record, frozen=True, array_like=True, tag=34):
    """The trained parameters as they were before the first update; one element each, in order.

    Attributes:
        names: as in the `LayerTable`; what has two axes and more comes first where there are many.
        fan_in: how many numbers one output of the weight is made of; 1 for a vector.
        rms, absmax: float32 bytes, over elements that are evenly spread.
        spread: float32 bytes, the largest minus the smallest of them.
        faint: float32 bytes, the share of them that is not zero and below the normal numbers.
    """

    names: list[str]
    fan_in: list[int]
    rms: bytes
    absmax: bytes
    spread: bytes
    faint: bytes = b""


class Activation(msgspec.Struct, frozen=True, array_like=True):
    """The outputs of one module over the calls of one training forward.

    Attributes:
        module: path of the module; "" is the root.
        calls: how often it was called.
        numel: elements of all outputs.
        mean, rms, absmax: over all of them; NaN where an output holds a NaN.
        zero_frac: share of exact zeros among the elements that were counted, evenly spread.
        headroom: largest finite number of the dtype divided by `absmax`; None for an absmax of 0.
        dtype: of the outputs, the first one where they differ.
        kind: class of the module.
        one_frac: share of magnitudes of exactly 1 among the elements that were counted; None
            where `absmax` is not 1.
        silent_frac: share of units that are exactly zero in every sample that was counted; None
            where an output has no units or too few samples.
    """

    module: str
    calls: int
    numel: int
    mean: float | None = None
    rms: float | None = None
    absmax: float | None = None
    zero_frac: float | None = None
    headroom: float | None = None
    dtype: str = ""
    kind: str = ""
    one_frac: float | None = None
    silent_frac: float | None = None


class Activations(Record, frozen=True, array_like=True, tag=32):
    """Module outputs of one sampled training forward.

    Attributes:
        items: the modules that had their turn, at most `MAX_ACTIVATIONS`.
        left_out: reason -> how many modules were not measured for it.
    """

    step: int
    items: list[Activation] = []
    left_out: dict[str, int] = {}


MAX_ACTIVATIONS = 512


class Histogram(Record, frozen=True, array_like=True, tag=33):
    """Magnitudes of one tensor on a logarithmic scale, by sign.

    Attributes:
        what: "weight", "gradient" or "activation".
        name: of the parameter or module.
        numel: elements of the tensor.
        counted: how many of them were counted, evenly spread; all of a small tensor.
        counts: uint32[2 * HISTOGRAM_BINS], from the most negative to the most positive. Positive
            bin i holds magnitudes from 2 ** (HISTOGRAM_LOW + i) up to twice that, the first one
            also everything smaller, the last one everything larger.
        zeros, nan, posinf, neginf: counted elements outside the bins.
    """

    step: int
    what: str
    name: str
    numel: int
    counted: int
    counts: bytes
    zeros: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0


HISTOGRAM_BINS = 64
HISTOGRAM_LOW = -48  # half precision spans 2**-24 to 2**16, gradients in single reach lower
