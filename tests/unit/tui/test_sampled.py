"""What was sampled of a layer, in words: figures where they are known, dashes where not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuimon.feed.samples import Samples
from tuimon.model.samples import (
    HISTOGRAM_BINS,
    Activation,
    Activations,
    Governor,
    Histogram,
    ParameterSample,
    ParameterSamples,
)
from tuimon.tui.draw.glyphs import ASCII
from tuimon.tui.draw.rows import in_alphabet
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.sampled import sample_rows, sampling_words
from tuimon.view.frame import Frame

LOOK = Look()


def lines(samples: Samples | None, path: str, *, parameter: bool = True) -> list[str]:
    rows = sample_rows(LOOK, Frame(samples=samples), path, 38, parameter=parameter)
    return ["".join(part.text for part in row).rstrip() for row in rows]


def counts(**bins: int) -> bytes:
    """Counts by exponent above the lowest bin: p5=3 is the sixth positive bin."""
    found = np.zeros(2 * HISTOGRAM_BINS, "<u4")
    for name, value in bins.items():
        place = int(name[1:])
        found[HISTOGRAM_BINS + place if name[0] == "p" else HISTOGRAM_BINS - 1 - place] = value
    return found.tobytes()


def test_nothing_known_is_dashes() -> None:
    for samples in (None, Samples()):
        assert lines(samples, "a.weight") == [
            " update    –",
            " absmax    –, grad –",
            " output    rms –, max –",
            " headroom  –, zeros –",
            " sampled   –",
        ]
        assert lines(samples, "a", parameter=False) == []


def test_figures_with_the_steps_they_are_from() -> None:
    samples = Samples()
    item = ParameterSample("a.weight", 2.5e-5, 0.036, 18.5, 0.00316, 9)
    samples.add(ParameterSamples(1200, 0, [item]))
    samples.add(Activations(1184, [Activation("a", 1, 8, 0.0, 0.58, 7.25, 0.5, 9034.9, "float16")]))
    assert lines(samples, "a.weight") == [
        " update    0.00316 of the weight",
        " absmax    0.036, grad 2.50e-5",
        " output    rms 0.58, max 7.25",
        " headroom  9,035×, zeros 50%",
        " sampled   at step 1,200, output 1,184",
    ]
    assert lines(samples, "a", parameter=False)[-1] == " sampled   at step 1,184"


def test_what_is_not_finite_is_a_word_in_the_colour_of_trouble() -> None:
    samples = Samples()
    samples.add(ParameterSamples(3, 0, [ParameterSample("a.w", math.nan, math.inf, 1.0, math.nan)]))
    samples.add(Activations(3, [Activation("a", 1, 8, math.nan, math.nan, math.nan, 0.0)]))
    rows = sample_rows(LOOK, Frame(samples=samples), "a.w", 38, parameter=True)
    words = ["".join(part.text for part in row) for row in rows]
    assert words[:3] == [
        " update    NaN of the weight",
        " absmax    +Inf, grad NaN",
        " output    rms NaN, max NaN",
    ]
    bad = LOOK.style("bad").color
    assert all(row[1].style.color == bad for row in rows[:3])


def test_a_histogram_is_the_number_line() -> None:
    samples = Samples()
    given = counts(p40=100, p41=50, n40=25)
    samples.add(Histogram(7, "gradient", "a.w", 200, 200, given, zeros=20, nan=5))
    drawn, below = lines(samples, "a.w")[-2:]
    assert drawn.startswith(" gradients ")
    left, _, right = drawn.removeprefix(" gradients ").partition("│")
    assert len(left) == 2 and len(right) == 2
    assert left[0] == " " and right[0] > right[1] > left[1] > " "
    assert below == " at 7      ±0.0039 … 0.016, zero 20, NaN 5"


@pytest.mark.parametrize("width", [14, 20, 38, 120])
def test_a_wide_histogram_fits(width: int) -> None:
    samples = Samples()
    given = np.ones(2 * HISTOGRAM_BINS, "<u4").tobytes()
    samples.add(Histogram(7, "weight", "a.w", 128, 128, given))
    rows = sample_rows(LOOK, Frame(samples=samples), "a.w", width, parameter=True)
    assert sum(len(part.text) for part in rows[-2]) <= width
    assert len({*"".join(part.text for part in rows[-2][1:])}) <= 3


def test_only_zeros_or_a_broken_record_draw_no_bars() -> None:
    samples = Samples()
    samples.add(Histogram(7, "weight", "a.w", 4, 4, counts(), zeros=4))
    samples.add(Histogram(7, "gradient", "a.w", 4, 4, b"short"))
    assert lines(samples, "a.w")[5:] == [" weights   zero 4"]


def test_sampling_in_words() -> None:
    assert sampling_words(None) == "–"
    assert sampling_words(Governor(9, 22, 0.00397, 0.005)) == "1/22, 0.397%"
    assert sampling_words(Governor(9, 1000, None, 0.005)) == "1/1,000, –"
    assert sampling_words(Governor(9, 214, 0.0136, 0.005)) == "1/214, 1.36% → 0.5%"
    assert sampling_words(Governor(9, 46, 0.00506, 0.005)) == "1/46, 0.506%"
    assert sampling_words(Governor(note="switched off")) == "switched off"


def test_ascii_stays_ascii() -> None:
    samples = Samples()
    samples.add(Histogram(7, "weight", "a.w", 4, 4, counts(p3=4)))
    look = Look(glyphs=ASCII)
    rows = sample_rows(look, Frame(samples=samples), "a.w", 38, parameter=True)
    assert all(part.text.isascii() for row in in_alphabet(look, rows) for part in row)
