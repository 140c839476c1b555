"""The record of a finding: one cause with its evidence, its place and its remedy.

Wire rules are those of `model.records`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuimon.model.wire import Record

REFUTED = "refuted"
WITHDRAWN = "withdrawn"  # status of what is no longer concluded: readers drop it

MAX_FINDINGS = 32  # kept by a reader; a run has a handful


class FindingRecord(Record, frozen=True, array_like=True, tag=50):
    """One cause as far as it is known; a later record with the same `id` takes its place.

    Attributes:
        id: the same for the same cause at the same place, whoever found it.
        cause: a slug of `causes.CAUSES`.
        severity: "info" | "warning" | "critical".
        confidence: 0 … 1.
        status: "confirmed" | "consistent" | "refuted" | "unknown", or `WITHDRAWN`.
        step: first step that shows it; None where it belongs to no step.
        time_ns: unix time of the conclusion; 0 when it is not known.
        phase: "forward" | "backward" | "optimizer"; "" when it is not known.
        evidence: sentences, the most telling first.
        remedy, code: what to do, in words and as Python.
        place: in the verdict, from 0 for the likeliest.
    """

    id: str
    cause: str
    severity: str = "warning"
    confidence: float = 0.0
    status: str = "unknown"
    step: int | None = None
    rank: int = 0
    module: str | None = None
    op: str = ""
    phase: str = ""
    file: str | None = None
    line: int | None = None
    param: str = ""
    sample: int | None = None
    evidence: list[str] = []
    remedy: str = ""
    code: str = ""
    time_ns: int = 0
    place: int = 0


def ranked(findings: Iterable[FindingRecord]) -> tuple[FindingRecord, ...]:
    """In the order of the verdict, in which what was refuted comes last."""
    return tuple(
        sorted(
            findings,
            key=lambda each: (each.place, each.status == REFUTED, -each.confidence, each.id),
        )
    )
