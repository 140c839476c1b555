"""What a rule concludes: a cause with its evidence, its place and its remedy."""

from __future__ import annotations

import hashlib

import msgspec

from tuimon.model.findings import FindingRecord
from tuimon.model.text import plain


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a cause, as far as it is known."""

    module: str | None = None
    op: str | None = None
    phase: str | None = None  # "forward" | "backward" | "optimizer"
    file: str | None = None
    line: int | None = None
    param: str | None = None
    sample: int | None = None
    rank: int = 0


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about it, in words and as code."""

    text: str
    code: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, with how sure the evidence makes it.

    Attributes:
        cause: a slug of `causes.CAUSES`.
        confidence: 0 … 1.
        status: "confirmed" | "consistent" | "refuted" | "unknown".
        step: first step that shows it.
    """

    cause: str
    severity: str
    confidence: float
    status: str
    step: int | None
    where: Where = Where()
    evidence: list[str] = []
    remedy: Remedy = Remedy(text="")

    @property
    def id(self) -> str:
        """The same for the same cause at the same place, whoever found it."""
        key = f"{self.cause}|{self.where.module}|{self.where.op}|{self.step}|{self.where.rank}"
        return hashlib.sha256(key.encode()).hexdigest()[:12]


def record_of(finding: Finding, time_ns: int, place: int = 0) -> FindingRecord:
    """A finding as it travels to viewers.

    Args:
        time_ns: unix time of the conclusion.
        place: in the verdict.
    """
    where = finding.where
    return FindingRecord(
        id=finding.id,
        cause=finding.cause,
        severity=finding.severity,
        confidence=finding.confidence,
        status=finding.status,
        step=finding.step,
        rank=where.rank,
        module=where.module,
        op=where.op or "",
        phase=where.phase or "",
        file=where.file,
        line=where.line,
        param=where.param or "",
        sample=where.sample,
        evidence=[plain(each) for each in finding.evidence],
        remedy=finding.remedy.text,
        code=finding.remedy.code,
        time_ns=time_ns,
        place=place,
    )
