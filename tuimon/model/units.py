"""How quantities are written for people and for JSON. Missing is a dash; NaN and Inf are words."""

from __future__ import annotations

import math

DASH = "–"
_FLOAT32_DIGITS = 7


def number(value: float | None, digits: int = 4) -> str:
    """Four significant digits, thousands separated, exponent outside 1e-4 … 1e7."""
    if value is None:
        return DASH
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def apart(low: float, high: float) -> tuple[str, ...]:
    """Two numbers with as many digits as tell them apart; one where float32 would not either."""
    for digits in range(4, _FLOAT32_DIGITS + 1):
        if (first := number(low, digits)) != (second := number(high, digits)):
            return first, second
    return (number(low),)


def count(value: int | None) -> str:
    """An integer with thousands separated."""
    return DASH if value is None else f"{value:,}"


def size_bytes(value: float | None) -> str:
    """Bytes in binary units with at most four significant digits."""
    if value is None:
        return DASH
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def duration_s(value: float | None) -> str:
    """Seconds as µs, ms, s, m or h, at most three significant digits."""
    if value is None or not math.isfinite(value):
        return DASH
    if value < 0:
        return f"-{duration_s(-value)}"
    if value == 0:
        return "0 s"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 59.95:
        return f"{value:.3g} s"
    value = max(60.0, value)
    if value < 3600:
        return f"{int(value // 60)}m{int(value % 60):02d}s"
    return f"{int(value // 3600)}h{int(value % 3600 // 60):02d}m"


def percent(value: float | None) -> str:
    """A fraction as per cent with three significant digits."""
    return DASH if value is None else f"{value * 100:.3g}%"


def json_number(value: float | None) -> float | str | None:
    """A number that strict JSON can carry: non-finite ones are the words of the report schema."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"
