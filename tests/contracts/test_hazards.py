"""Every hazard is proven by a test that carries its number, or stands in a table with a reason."""

from __future__ import annotations

from tests.contracts.hazards import ELSEWHERE, HAZARDS, proofs


def test_every_hazard_is_proven_or_explained() -> None:
    assert list(HAZARDS) == list(range(1, 53))
    proven = proofs()
    assert sorted(HAZARDS.keys() - proven.keys() - ELSEWHERE.keys()) == []


def test_what_is_proven_needs_no_excuse() -> None:
    proven = proofs()
    assert sorted(proven.keys() & ELSEWHERE.keys()) == []
    assert sorted(proven.keys() - HAZARDS.keys()) == []
    assert all(ELSEWHERE.values())
