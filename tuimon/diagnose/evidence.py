"""What rules reason from, and what a rule is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.findings import Finding
from tuimon.model.autopsy import Autopsy
from tuimon.model.records import Facts, Symptom
from tuimon.model.trials import TrialRecord


@dataclass(frozen=True)
class Evidence:
    """Everything a rule may reason from."""

    symptoms: Sequence[Symptom]
    facts: Facts | None
    amp_verdict: str
    autopsies: Sequence[Autopsy] = ()
    circumstances: Circumstances | None = None
    trials: Sequence[TrialRecord] = ()


class Rule(Protocol):
    """Concludes causes from evidence."""

    def conclude(self, evidence: Evidence) -> Iterable[Finding]:
        """Findings in the order of their weight; none when the evidence does not carry any."""
        ...
