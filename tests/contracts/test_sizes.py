"""Sizes of files, functions, classes and signatures stay within the limits of the project."""

from __future__ import annotations

import pytest

from tools.check_sizes import check_source, violations


def test_everything_is_within_the_limits() -> None:
    assert list(violations()) == []


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("x = 1\n" * 401, "m.py: 401 lines, limit 400"),
        ("def f():\n" + "    x = 1\n" * 50, "m.py::f: 51 lines, limit 50 (line 1)"),
        ("class C:\n" + "    x = 1\n" * 250, "m.py::C: 251 lines, limit 250 (line 1)"),
        ("def f(a, b, c, d, e, f): ...\n", "m.py::f: 6 positional parameters, limit 5"),
        ("async def f(a, b, /, c, d, e, f): ...", "m.py::f: 6 positional parameters, limit 5"),
    ],
)
def test_what_is_too_large_is_named(source: str, sentence: str) -> None:
    assert [found for _, found in check_source("m.py", source)] == [sentence]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\n" * 400,
        "def f():\n" + "    x = 1\n" * 49,
        "class C:\n    def f(self, a, b, c, d, e, *, f, g): ...\n",
        "class C:\n    @classmethod\n    def f(cls, a, b, c, d, e): ...\n",
    ],
)
def test_what_just_fits_is_fine(source: str) -> None:
    assert not list(check_source("m.py", source))
