"""What one batch held, in lines: trouble first, then tensors, losses, labels, and all over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from tuimon.model.batches import LossSeen, TensorSummary
from tuimon.model.records import Batch
from tuimon.model.text import plain
from tuimon.model.units import DASH, count, number, percent
from tuimon.tui.draw.braille import spark
from tuimon.tui.draw.glyphs import GlyphSet
from tuimon.tui.stories.lines import LABEL, Line, Part, heading, pair, table
from tuimon.view.frame import Frame

_MAX_LABELS = 24  # bars; more labels than that are told by their range
_BAR_CELLS = 24
_NAME_CELLS = 20
_TREND_CELLS = 36
_FEW = 12
_WORDS = {
    "first": "one of the first",
    "sample": "sampled",
    "suspicion": "looked at because the loss or a gradient was not finite",
    "jump": "looked at because the loss jumped",
}


def batch_story(
    batch: Batch, known: Sequence[Batch], glyphs: GlyphSet, width: int, *, frame: Frame
) -> list[Line]:
    """Everything about a batch.

    Args:
        known: all batches that were looked at, oldest first.
        glyphs: for bars and small charts.
    """
    lines = [Line(((_WORDS.get(batch.why, plain(batch.why, 60)), "dim"),), "why")]
    lines += checks(batch, known)
    lines += heading("inputs", f"{batch.left_out:,} more not looked at" if batch.left_out else "")
    lines += _tensors(batch.inputs) or [Line((("the model was called without tensors", "dim"),))]
    for loss in batch.losses:
        lines += _loss(loss, glyphs.bar)
    if not batch.losses and frame.facts is not None and not frame.facts.losses:
        lines += heading("loss")
        lines.append(Line((("no loss function of torch.nn was seen below the loss", "dim"),)))
    return lines + _over_time(batch, known, glyphs.spark, width)


def is_suspicious(batch: Batch) -> bool:
    """Whether something in it is not finite, or a label lies outside.

    What the model made of it does not count: once the weights are NaN, every prediction is.
    """
    targets = [each.target for each in batch.losses if each.target is not None]
    tensors = [each for each in (*batch.inputs, *targets) if not each.is_computed]
    return any(bad_of(each) for each in tensors) or any(each.outside for each in batch.losses)


def bad_of(tensor: TensorSummary) -> int:
    """Elements that are not finite, among those that were looked at."""
    return (tensor.nan or 0) + (tensor.posinf or 0) + (tensor.neginf or 0)


def shape_words(shape: Sequence[int]) -> str:
    """A shape as a person writes it."""
    return "×".join(map(str, shape[:8])) or "scalar"


def checks(batch: Batch, known: Sequence[Batch]) -> list[Line]:
    """What was checked, and what of it is not as it should be."""
    found: list[tuple[str, str]] = []
    for tensor in batch.inputs:
        found += _tensor_checks(tensor, _usual(tensor.name, batch, known))
    made = "" if is_suspicious(batch) else "; the model made it, the batch itself is finite"
    for loss in batch.losses:
        found += _loss_checks(loss, made)
    if not found:
        words = "finite, shapes and dtypes as before" + (
            ", targets in range" if any(each.outside == 0 for each in batch.losses) else ""
        )
        return [Line(((words, "ok"),), "checks")]
    return [
        Line(((plain(words, 300), tone),), "checks" if not at else "", indent=0, is_whole=bool(at))
        for at, (words, tone) in enumerate(found)
    ]


def _tensor_checks(tensor: TensorSummary, usual: TensorSummary | None) -> list[tuple[str, str]]:
    name = tensor.name
    found: list[tuple[str, str]] = []
    if bad_of(tensor):
        kinds = _kinds(tensor)
        where = f", first at {tensor.first_bad}" if tensor.first_bad else ""
        samples = (
            f", in {tensor.bad_samples:,} sample{'s' if tensor.bad_samples > 1 else ''}"
            if tensor.bad_samples
            else ""
        )
        made = " (made by another part of the model)" if tensor.is_computed else ""
        found.append((f"input {name}{made}: {kinds}{samples}{where}", "bad"))
    if usual is not None:
        if tensor.dtype != usual.dtype:
            found.append((f"input {name} was {_dtype(usual)} before, now {_dtype(tensor)}", "warn"))
        if tensor.shape[1:] != usual.shape[1:]:
            words = f"input {name} had the shape {shape_words(usual.shape)} before"
            found.append((words, "key"))
    if tensor.constant_features and tensor.features and not tensor.is_computed:
        share = f"{tensor.constant_features:,} of {tensor.features:,}"
        found.append((f"input {name}: {share} features have one value in all samples", "warn"))
    if tensor.duplicates and not tensor.is_computed:
        found.append((f"input {name}: {tensor.duplicates:,} samples repeat an earlier one", "warn"))
    if tensor.low is not None and tensor.low == tensor.high and tensor.looked_at > 1:
        found.append((f"input {name}: every element is {number(tensor.low)}", "warn"))
    return found


def _loss_checks(loss: LossSeen, made: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if bad_of(loss.prediction):
        found.append((f"prediction: {_kinds(loss.prediction)}{made}", "warn" if made else "bad"))
    if loss.target is not None and bad_of(loss.target):
        found.append((f"target: {_kinds(loss.target)}", "bad"))
    if loss.outside:
        what = f"0 … {loss.facts.classes - 1}" if loss.facts.classes else "0 … 1"
        found.append((f"{loss.outside:,} targets lie outside {what}", "bad"))
    if loss.spread:
        both = " and ".join(shape_words(shape) for shape in loss.spread)
        found.append((f"prediction and target are spread against each other: {both}", "warn"))
    if loss.facts.is_swapped:
        found.append(("prediction and target are swapped: only the target has a gradient", "warn"))
    return found


def _usual(name: str, batch: Batch, known: Sequence[Batch]) -> TensorSummary | None:
    """The same input of the batch that was looked at before."""
    before = [each for each in known if each.step < batch.step]
    for each in reversed(before):
        for tensor in each.inputs:
            if tensor.name == name:
                return tensor
    return None


def _kinds(tensor: TensorSummary) -> str:
    counts = (("NaN", tensor.nan), ("+Inf", tensor.posinf), ("-Inf", tensor.neginf))
    words = ", ".join(f"{value:,} {word}" for word, value in counts if value)
    return f"{words} of {tensor.looked_at:,}"


def _dtype(tensor: TensorSummary) -> str:
    return plain(tensor.dtype.removeprefix("torch."), 20)


def _tensors(tensors: Sequence[TensorSummary], names: Sequence[str] = ()) -> list[Line]:
    if not tensors:
        return []
    heads = ("tensor", "shape", "dtype", "range", "mean ± std", "zeros", "bad")
    rows: list[Sequence[Part]] = [[(word, "dim") for word in heads]]
    for at, tensor in enumerate(tensors):
        label = names[at] if names else tensor.name
        rows.append(_tensor(tensor, label))
    return [replace(line, is_whole=False) for line in table(rows)]  # from the left edge on


def _tensor(tensor: TensorSummary, label: str) -> list[Part]:
    bad = bad_of(tensor)
    spread = DASH
    if tensor.mean is not None:
        std = "" if tensor.std is None else f" ± {number(tensor.std, 3)}"
        spread = f"{number(tensor.mean, 3)}{std}"
    extent = DASH
    if tensor.low is not None:
        extent = f"{number(tensor.low, 3)} … {number(tensor.high, 3)}"
    if not tensor.looked_at:
        return [
            (plain(label, _NAME_CELLS), "strong"),
            (shape_words(tensor.shape), "text"),
            (_dtype(tensor), "text"),
            (plain(tensor.why_not, 60) or DASH, "dim"),
            ("", "text"),
            ("", "text"),
            ("", "text"),
        ]
    return [
        (plain(label, _NAME_CELLS), "strong"),
        (shape_words(tensor.shape), "text"),
        (_dtype(tensor), "text"),
        (extent, "text"),
        (spread, "text"),
        (percent(tensor.zero_frac), "text"),
        (f"{bad:,}" if tensor.nan is not None else DASH, "bad" if bad else "ok"),
    ]


def _loss(loss: LossSeen, bar: str) -> list[Line]:
    facts = loss.facts
    note = plain(facts.op.removesuffix("0").removesuffix("Backward"), 40)
    if facts.reduction:
        note += f", {plain(facts.reduction, 10)}"
    if facts.classes is not None:
        note += f", {facts.classes:,} classes"
    lines = heading("loss", note)
    tensors, names = [loss.prediction], ["prediction"]
    if loss.target is not None:
        tensors.append(loss.target)
        names.append("target")
    lines += _tensors(tensors, names)
    return lines + _labels(loss, bar)


def _labels(loss: LossSeen, glyph: str) -> list[Line]:
    """How often each label comes, as bars; their range where there are many."""
    lines: list[Line] = []
    if loss.label_range:
        low, high = loss.label_range[0], loss.label_range[-1]
        classes = loss.facts.classes
        words = f"{low:,} … {high:,}" + (f" of {classes:,} classes" if classes else "")
        ignored = f"  {count(loss.ignored)} ignored" if loss.ignored else ""
        outside = loss.outside or 0
        lines.append(
            Line(
                (
                    (words, "text"),
                    (ignored, "dim"),
                    (f"  {outside:,} outside" if outside else "", "bad"),
                ),
                "labels",
            )
        )
    if not loss.labels or len(loss.labels) > _MAX_LABELS:
        if loss.labels:
            lines.append(pair("", f"{len(loss.labels):,} different ones in this batch", "dim"))
        return lines
    most = max(times for _, times in loss.labels)
    classes = loss.facts.classes
    for label, times in sorted(loss.labels):
        is_out = classes is not None and not 0 <= label < classes
        bar = glyph * max(1, round(_BAR_CELLS * times / most)) if times else ""
        tone = "bad" if is_out else "key"
        parts = ((f"{label:>6,} ", tone if is_out else "text"), (bar, tone), (f" {times:,}", "dim"))
        lines.append(Line(parts, is_whole=True))
    return lines


def _over_time(batch: Batch, known: Sequence[Batch], ramp: str, width: int) -> list[Line]:
    """Mean, extent and bad elements of each input over the batches that were looked at."""
    if len(known) < 2:
        return []
    cells = max(8, min(_TREND_CELLS, width - LABEL - 34))
    first, last = known[0].step, known[-1].step
    lines = heading("over time", f"{len(known):,} batches, steps {first:,} … {last:,}")
    for tensor in batch.inputs[:4]:
        name = f"input {tensor.name}"
        same = [t for each in known for t in each.inputs if t.name == tensor.name]
        lines += _trends(plain(name, _NAME_CELLS), same, ramp, cells)
    targets = [each.losses[0].target for each in known if each.losses]
    lines += _trends("target", [each for each in targets if each is not None], ramp, cells)
    outside = [each.losses[0].outside for each in known if each.losses]
    if any(outside):
        total = sum(filter(None, outside))
        lines.append(Line(((f"{total:,} targets outside in all of them", "bad"),), "labels"))
    return lines


def _trends(name: str, same: Sequence[TensorSummary], ramp: str, cells: int) -> list[Line]:
    if len(same) < 2:
        return []
    lines = [Line(((name, "strong"),))]
    for word, values in (
        ("mean", [each.mean for each in same]),
        ("lowest", [each.low for each in same]),
        ("highest", [each.high for each in same]),
    ):
        finite = [value for value in values if value is not None and math.isfinite(value)]
        if len(finite) < 2:
            continue
        bars = _bars([math.nan if value is None else value for value in values], cells, ramp)
        words = f"  {number(min(finite), 3)} … {number(max(finite), 3)}"
        lines.append(Line(((bars, "key"), (words, "dim")), word))
    bad = [bad_of(each) for each in same]
    if any(bad):
        times = sum(value > 0 for value in bad)
        bars = _bars([float(value) for value in bad], cells, ramp)
        lines.append(
            Line(
                (
                    (bars, "bad"),
                    (f"  {sum(bad):,} in {times:,} batch{'es' if times > 1 else ''}", "bad"),
                ),
                "bad",
            )
        )
    shapes = {tuple(each.shape) for each in same}
    dtypes = {_dtype(each) for each in same}
    if len(shapes) > 1:
        sizes = sorted(shapes)
        words = f"{len(shapes):,} different: {shape_words(sizes[0])} … {shape_words(sizes[-1])}"
        lines.append(Line(((words, "text"),), "shape"))
    if len(dtypes) > 1:
        lines.append(Line(((", ".join(sorted(dtypes)), "warn"),), "dtype"))
    return lines


def _bars(values: Sequence[float], cells: int, ramp: str) -> str:
    """The newest values from the left on, so that few of them stand beside their word."""
    return spark(values, min(cells, len(values)), ramp).ljust(min(cells, _FEW))
