"""No text from data may steer the terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tuimon.model.text import plain


def test_escape_sequences_lose_their_teeth() -> None:
    assert plain("loss\x1b[2J\x9b31m") == "loss�[2J�31m"
    assert plain("a\r\nb\tc") == "a  b c"
    assert plain("safe‮evil") == "safe�evil"


@given(st.text(max_size=300), st.integers(1, 100))
def test_what_comes_out_is_one_printable_line(text: str, limit: int) -> None:
    shown = plain(text, limit)
    assert len(shown) <= limit
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=50))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert plain(text) == text
