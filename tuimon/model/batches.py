"""What a look at a batch finds: the parts that `records.Batch` and `records.Facts` are made of."""

from __future__ import annotations

import msgspec

MAX_LABELS = 128


class TensorSummary(msgspec.Struct, frozen=True, array_like=True):
    """What a cheap look at one tensor of a batch found.

    Attributes:
        name: where it stood in the call: "0" or "mask", nested ones "0.mask".
        looked_at: elements that the figures cover, fewer than all in a large tensor; 0 when it
            was not looked at, and `why_not` says why.
        nan, posinf, neginf: counts among them; None when it was not looked at.
        low, high, mean, std: of the finite ones.
        zero_frac: share of exact zeros.
        first_bad: index of the first element that is not finite.
        bad_samples: entries along the first dimension that hold one.
        features: columns of a table of samples that were compared; None where there is no table.
        constant_features: how many of them have one value in all samples.
        duplicates: samples that equal an earlier one of the same batch; None when not compared.
        duplicate_pair: indices of the first such sample and the one it equals.
        is_computed: it comes from another part of the model, not from the data.
    """

    name: str
    shape: list[int]
    dtype: str
    device: str = "cpu"
    looked_at: int = 0
    why_not: str = ""
    nan: int | None = None
    posinf: int | None = None
    neginf: int | None = None
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    std: float | None = None
    zero_frac: float | None = None
    first_bad: list[int] = []
    bad_samples: int | None = None
    features: int | None = None
    constant_features: int | None = None
    duplicates: int | None = None
    duplicate_pair: list[int] = []
    is_computed: bool = False


class LossFacts(msgspec.Struct, frozen=True, array_like=True):
    """One loss function of the training, as its node in the graph of the loss describes it.

    Attributes:
        op: name of the node, e.g. "NllLossBackward0".
        reduction: "none" | "mean" | "sum"; "" when it is not known.
        classes: how many classes the predictions have; None where targets are no class indices.
        ignore_index: the label that does not count; None where there is none.
        above: names of the nodes that made its predictions, the nearest first.
        axis: the axis of the softmax among them; None without one.
        class_axis: the axis of the predictions that the classes lie on.
        is_swapped: only its target needs a gradient.
    """

    op: str
    reduction: str = ""
    classes: int | None = None
    ignore_index: int | None = None
    above: list[str] = []
    axis: int | None = None
    class_axis: int | None = None
    is_swapped: bool = False


class LossSeen(msgspec.Struct, frozen=True, array_like=True):
    """What one loss function was given.

    Attributes:
        facts: the function itself.
        prediction, target: both as the function saw them.
        labels: (label, how many) of class indices that count; empty beyond `MAX_LABELS`.
        label_range: the lowest and the highest of them.
        ignored: targets that equal `facts.ignore_index`.
        outside: targets that the function does not expect: class indices outside 0 … classes - 1,
            probabilities outside 0 … 1.
        spread: shapes of prediction and target before both were spread to one larger shape;
            empty when that did not happen.
    """

    facts: LossFacts
    prediction: TensorSummary
    target: TensorSummary | None = None
    labels: list[tuple[int, int]] = []
    ignored: int | None = None
    outside: int | None = None
    spread: list[list[int]] = []
    label_range: list[int] = []
