"""What was sampled of the selected layer, in words and as small histograms."""

from __future__ import annotations

import math

import numpy as np

from tuimon.model.samples import (
    HISTOGRAM_BINS,
    HISTOGRAM_LOW,
    Activation,
    Governor,
    Histogram,
    ParameterSample,
)
from tuimon.model.units import DASH, count, number, percent
from tuimon.tui.draw.braille import spark
from tuimon.tui.draw.rows import Row, text
from tuimon.tui.draw.theme import Look
from tuimon.view.frame import Frame

OVER = 1.1  # times the budget
_LABEL = 11  # cells of the word before a value
_LOW_HEADROOM = 4.0  # two doublings below the largest number of the dtype


def sampling_words(governor: Governor | None) -> str:
    """How often extras are sampled, what that costs, and where it is more than it may."""
    if governor is None:
        return DASH
    if governor.stride is None:
        return governor.note or DASH
    words = f"1/{governor.stride:,}, {percent(governor.share_frac)}"
    if is_over(governor) and not governor.note:
        # The first samples are dear, and are paid off over many steps.
        return f"{words} → {percent(governor.budget_frac)}"
    return words


def is_over(governor: Governor) -> bool:
    """Whether sampling has cost more than its budget so far, by what is worth a word."""
    return governor.share_frac is not None and governor.share_frac > OVER * governor.budget_frac


def sample_rows(look: Look, frame: Frame, path: str, width: int, *, parameter: bool) -> list[Row]:
    """What was sampled of one row of the layer tree; dashes for what is not known.

    Args:
        path: of the parameter, or of the module that a group stands for.
        parameter: whether it is a parameter, whose outputs are those of its module.
    """
    samples = frame.samples
    module = path.rpartition(".")[0] if parameter else path
    activation = samples.activation(module) if samples else None
    rows: list[Row] = []
    if parameter:
        found = samples.parameter(path) if samples else None
        rows += _parameter_rows(look, found)
        rows += _output_rows(look, activation)
        steps = _steps(found[0] if found else None, activation[0] if activation else None)
        rows.append(_line(look, "sampled", steps, "dim"))
    elif activation is not None:
        rows += _output_rows(look, activation)
        rows.append(_line(look, "sampled", _steps(None, activation[0]), "dim"))
    if samples is None:
        return rows
    for word, what, name in (
        ("weights", "weight", path),
        ("gradients", "gradient", path),
        ("outputs", "activation", module),
    ):
        histogram = samples.histogram(what, name)
        if histogram is not None:
            rows += histogram_rows(look, word, histogram, width)
    return rows


def _parameter_rows(look: Look, found: tuple[int, ParameterSample] | None) -> list[Row]:
    item = found[1] if found else None
    ratio = item.update_ratio if item else None
    weight, grad = (item.weight_absmax, item.grad_absmax) if item else (None, None)
    words = DASH if ratio is None else f"{number(ratio, 3)} of the weight"
    return [
        _line(look, "update", words, _tone(ratio)),
        _line(look, "absmax", f"{number(weight, 3)}, grad {number(grad, 3)}", _tone(weight, grad)),
    ]


def _output_rows(look: Look, found: tuple[int, Activation] | None) -> list[Row]:
    item = found[1] if found else None
    absmax, rms = (item.absmax, item.rms) if item else (None, None)
    headroom, zeros = (item.headroom, item.zero_frac) if item else (None, None)
    low = headroom is not None and headroom < _LOW_HEADROOM
    room = DASH if headroom is None else f"{number(headroom, 3)}×"
    return [
        _line(look, "output", f"rms {number(rms, 3)}, max {number(absmax, 3)}", _tone(absmax)),
        _line(look, "headroom", f"{room}, zeros {percent(zeros)}", "warn" if low else "text"),
    ]


def histogram_rows(look: Look, word: str, histogram: Histogram, width: int) -> list[Row]:
    """Bars over the number line, each side logarithmic, and the magnitudes at its ends."""
    if len(histogram.counts) != 2 * HISTOGRAM_BINS * 4:
        return []
    counts = np.frombuffer(histogram.counts, "<u4")
    negative, positive = counts[:HISTOGRAM_BINS][::-1], counts[HISTOGRAM_BINS:]
    filled = np.flatnonzero(negative | positive)
    notes = [
        f"{label} {count(value)}"
        for label, value in (
            ("zero", histogram.zeros),
            ("NaN", histogram.nan),
            ("+Inf", histogram.posinf),
            ("-Inf", histogram.neginf),
        )
        if value
    ]
    bad = bool(histogram.nan or histogram.posinf or histogram.neginf)
    if not len(filled):
        return [_line(look, word, ", ".join(notes) or DASH, "bad" if bad else "text")]
    low, high = int(filled[0]), int(filled[-1]) + 1
    side = max(1, (width - _LABEL - 2) // 2)
    group = -(-(high - low) // side)
    bars = spark(
        np.concatenate(
            (
                _levels(negative[low:high], group)[::-1],
                [math.nan],
                _levels(positive[low:high], group),
            )
        ),
        2 * -(-(high - low) // group) + 1,
        look.glyphs.spark,
    )
    middle = len(bars) // 2
    drawn: Row = [
        text(look, f" {word:<{_LABEL - 1}}", "dim"),
        text(look, bars[:middle], "key"),
        text(look, look.glyphs.box[5], "faint"),
        text(look, bars[middle + 1 :], "key"),
    ]
    ends = (
        f"±{number(2.0 ** (HISTOGRAM_LOW + low), 2)} … {number(2.0 ** (HISTOGRAM_LOW + high), 2)}"
    )
    below = ", ".join((ends, *notes))
    return [drawn, _line(look, f"at {histogram.step:,}", below, "bad" if bad else "dim")]


def _levels(counts: np.ndarray, group: int) -> np.ndarray:
    """Roots of the sums of `group` neighbours, so that tails stay visible; NaN for none."""
    padded = np.concatenate((counts, np.zeros(-len(counts) % group, counts.dtype)))
    sums = padded.reshape(-1, group).sum(axis=1).astype(np.float64)
    return np.where(sums > 0, np.sqrt(sums), np.nan)


def _line(look: Look, word: str, value: str, colour: str) -> Row:
    return [text(look, f" {word:<{_LABEL - 1}}", "dim"), text(look, value, colour)]


def _tone(*values: float | None) -> str:
    finite = all(value is None or math.isfinite(value) for value in values)
    return "text" if finite else "bad"


def _steps(parameter: int | None, output: int | None) -> str:
    """Where the figures above are from."""
    if output is None or output == parameter:
        return DASH if parameter is None else f"at step {parameter:,}"
    if parameter is None:
        return f"at step {output:,}"
    return f"at step {parameter:,}, output {output:,}"
