"""What the engines of all ranks of a run say together: whose the fault is, and each cause once.

After gradients have been reduced every rank holds the same bad one and looks guilty. What tells
them apart is what a rank has seen by itself before: its own loss, or the operation that its
autopsy has found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from tuimon.diagnose.amp import COLLAPSING, AmpLedger
from tuimon.diagnose.crashes import CrashScene
from tuimon.diagnose.engine import Engine
from tuimon.diagnose.findings import Finding, Where
from tuimon.model.autopsy import Autopsy
from tuimon.model.causes import SEVERITIES, UNKNOWN
from tuimon.model.records import Symptom
from tuimon.model.trials import TrialRecord

_LOSS, _GRADIENT = "non-finite-loss", "non-finite-gradient"
_DESYNC = "dist-desync"


@dataclass(frozen=True)
class Member:
    """One rank, and with which others its weights disagree."""

    rank: int
    engine: Engine
    differs: Sequence[int] = field(default=())


class Joined:
    """All ranks as one engine has them: what a report is built from. The lead comes first.

    Args:
        culprit: the rank whose end ended the others; None where there is none.
    """

    def __init__(self, members: Sequence[Member], culprit: int | None = None) -> None:
        self._members = members
        self._culprit = culprit
        self.bad_step, self.guilty = _guilty(members)
        self.findings = self._findings() if len(members) > 1 else members[0].engine.findings

    @property
    def symptoms(self) -> list[Symptom]:
        """Of all ranks, by step; those of a single one as they were found."""
        if len(self._members) == 1:
            return self._members[0].engine.symptoms
        found = [symptom for each in self._members for symptom in each.engine.symptoms]
        return sorted(found, key=lambda each: -1 if each.step is None else each.step)

    @property
    def autopsies(self) -> list[Autopsy]:
        """Those of guilty ranks first."""
        return [autopsy for each in self._by_guilt() for autopsy in each.engine.autopsies]

    @property
    def trials(self) -> list[TrialRecord]:
        """Of all ranks."""
        return [trial for each in self._by_guilt() for trial in each.engine.trials]

    @property
    def amp(self) -> AmpLedger:
        """Of the lead, or of the first rank whose loss scale collapses."""
        ledgers = [each.engine.amp for each in self._members]
        return next((each for each in ledgers if each.verdict == COLLAPSING), ledgers[0])

    @property
    def scene(self) -> CrashScene:
        """Of the rank that ended the others, or of the first that crashed."""
        members = sorted(self._by_guilt(), key=lambda each: each.rank != self._culprit)
        scenes = [each.engine.scene for each in members]
        return next((each for each in scenes if each.crash is not None), scenes[0])

    def unrecovered(self) -> set[str]:
        """Kinds of critical incidents that nothing healthy has followed, on any rank."""
        return {kind for each in self._members for kind in each.engine.unrecovered()}

    def _by_guilt(self) -> list[Member]:
        return sorted(self._members, key=lambda each: each.rank not in self.guilty)

    def _findings(self) -> list[Finding]:
        """Each cause at each place once, of the rank that shows it first."""
        found: dict[tuple[str, Where], Finding] = {}
        also: dict[tuple[str, Where], set[int]] = {}
        odd = self._odd_one()
        for member in self._by_guilt():
            for finding in member.engine.findings:
                if self._only_received(member, finding) or self._was_left(member, finding):
                    continue
                key = finding.cause, structs.replace(finding.where, rank=0)
                also.setdefault(key, set()).add(member.rank)
                known = found.get(key)
                if known is None or _comes_first(finding, known, odd):
                    found[key] = finding
        told = [_with_others(finding, also[key]) for key, finding in found.items()]
        return sorted(told, key=self._weight, reverse=True)

    def _only_received(self, member: Member, finding: Finding) -> bool:
        """Whether it speaks of what another rank's bad gradient has done to this one."""
        if not self.guilty or member.rank in self.guilty:
            return False
        if self.bad_step is None or finding.step is None:
            return False
        return finding.step in (self.bad_step, self.bad_step + 1) or (
            finding.step > self.bad_step and bool(member.engine.unrecovered())
        )

    def _was_left(self, member: Member, finding: Finding) -> bool:
        """Whether it speaks of the exception of a rank that another one has left alone."""
        crash = member.engine.scene.crash
        if self._culprit is None or member.rank == self._culprit or crash is None:
            return False
        return any(each.startswith(f"{crash.kind}:") for each in finding.evidence[:1])

    def _odd_one(self) -> int | None:
        """The rank that disagrees with all others while these agree; needs three."""
        most = sorted(self._members, key=lambda each: -len(each.differs))
        if len(most) < 2 or len(most[0].differs) == len(most[1].differs):
            return None
        return most[0].rank

    def _weight(self, finding: Finding) -> tuple[bool, bool, int, bool, float]:
        return (
            finding.status != "refuted",
            finding.cause != UNKNOWN,
            SEVERITIES.index(finding.severity),
            finding.where.rank in self.guilty,
            finding.confidence,
        )


def _guilty(members: Sequence[Member]) -> tuple[int | None, frozenset[int]]:
    """(step, ranks) of what was not finite first and no other rank had sent."""
    losses = _first(members, _LOSS)
    gradients = _first(members, _GRADIENT)
    bad_step = min([*losses.values(), *gradients.values()], default=None)
    if bad_step is None:
        return None, frozenset()
    own = {rank for rank, step in losses.items() if step == bad_step}
    if not own:
        own = {
            each.rank
            for each in members
            if any(a.first is not None and a.step == bad_step for a in each.engine.autopsies)
        }
    return bad_step, frozenset(own)


def _first(members: Sequence[Member], kind: str) -> dict[int, int]:
    """The first step of a symptom, by rank."""
    found: dict[int, int] = {}
    for each in members:
        steps = [s.step for s in each.engine.symptoms if s.kind == kind and s.step is not None]
        if steps:
            found[each.rank] = min(steps)
    return found


def _comes_first(finding: Finding, known: Finding, odd: int | None) -> bool:
    if finding.cause == _DESYNC and odd is not None:
        return finding.where.rank == odd
    if finding.step is None or known.step is None:
        return False
    return finding.step < known.step


def _with_others(finding: Finding, ranks: set[int]) -> Finding:
    others = sorted(ranks - {finding.where.rank})
    if not others:
        return finding
    named = ", ".join(map(str, others[:8])) + (", …" if len(others) > 8 else "")
    evidence = [*finding.evidence, f"the same on rank {named}"]
    return structs.replace(finding, evidence=evidence)
