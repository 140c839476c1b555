"""The first bad of many is found by halves, also where some cannot be judged."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tuimon.inspect.bisecting import first_bad, in_order


@given(st.integers(1, 60), st.integers(0, 60), st.sets(st.integers(0, 59)))
def test_the_first_bad_one_is_found(count: int, since: int, torn: set[int]) -> None:
    asked: list[int] = []

    def judge(place: int) -> bool | str:
        asked.append(place)
        return "is cut short" if place in torn else place < since

    found = first_bad(count, judge)
    left = [place for place in range(count) if place not in torn]
    bad = [place for place in left if place >= since]
    good = [place for place in left if place < since]
    assert found.first_bad == (bad[0] if bad else None)
    assert found.last_good == (good[-1] if good else None)
    assert len(asked) == len(set(asked)) == found.read
    assert found.read <= count.bit_length() + 1 + len(found.unreadable)
    assert set(found.unreadable) <= torn


def test_names_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("step-10.pt", "step-9.pt", "step-100.pt", "notes.txt", ".hidden.pt"):
        (tmp_path / name).touch()
    (tmp_path / "logs").mkdir()
    assert [each.name for each in in_order([str(tmp_path)])] == [
        "step-9.pt",
        "step-10.pt",
        "step-100.pt",
    ]
