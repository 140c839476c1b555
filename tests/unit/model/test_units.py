"""How quantities are written: tables, and that missing is never a number."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuimon.model import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (0.0, "0"),
        (2.23641, "2.236"),
        (65536.0, "65,536"),
        (1234.56, "1,235"),
        (0.0012345, "0.001234"),
        (1e-5, "1.000e-5"),
        (1.4e8, "1.400e8"),
        (9999999.0, "9,999,999"),
        (-3.5, "-3.5"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert units.number(value) == text


@given(st.floats(-1e308, 1e308))
def test_numbers_keep_three_digits_of_their_value(value: float) -> None:
    text = units.number(value).replace(",", "")
    assert math.isclose(float(text), value, rel_tol=6e-4, abs_tol=1e-300)
    assert len(text) <= 12


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (-0.25, "-250 ms"),
        (3.2e-6, "3 µs"),
        (0.99996, "1 s"),
        (59.96, "1m00s"),
        (0.0123, "12.3 ms"),
        (1.0, "1 s"),
        (61, "1m01s"),
        (3660, "1h01m"),
        (math.inf, "–"),
    ],
)
def test_durations(value: float | None, text: str) -> None:
    assert units.duration_s(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 45, "32.0 TiB")],
)
def test_sizes(value: float | None, text: str) -> None:
    assert units.size_bytes(value) == text


@given(st.none() | st.floats())
def test_json_numbers_are_strict_json(value: float | None) -> None:
    json.dumps(units.json_number(value), allow_nan=False)


def test_json_numbers_keep_what_is_not_finite_apart() -> None:
    words = [units.json_number(x) for x in (math.nan, math.inf, -math.inf, None)]
    assert words == ["NaN", "+Inf", "-Inf", None]
