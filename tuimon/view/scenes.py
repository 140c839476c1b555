"""What was found out about a run: autopsies, the crash, findings with their rank, and trials."""

from __future__ import annotations

from tuimon.feed.chronicle import MAX_AUTOPSIES
from tuimon.model.autopsy import Autopsy
from tuimon.model.crash import Crash
from tuimon.model.findings import MAX_FINDINGS, WITHDRAWN, FindingRecord, ranked
from tuimon.model.trials import MAX_TRIALS, TrialRecord


class Scenes:
    """Bounded; every attribute is replaced as a whole, so that a frame may keep it.

    Attributes:
        autopsies: oldest first.
        findings: the newest of each id, in the order of the verdict.
        trials: oldest first.
    """

    def __init__(self) -> None:
        self.autopsies: tuple[Autopsy, ...] = ()
        self.crash: Crash | None = None
        self.findings: tuple[FindingRecord, ...] = ()
        self.trials: tuple[TrialRecord, ...] = ()

    def add(self, record: Autopsy | Crash | FindingRecord | TrialRecord) -> None:
        """Take in one record."""
        if isinstance(record, Autopsy):
            self.autopsies = (*self.autopsies, record)[:MAX_AUTOPSIES]
        elif isinstance(record, Crash):
            self.crash = record
        elif isinstance(record, TrialRecord):
            self.trials = (*self.trials, record)[:MAX_TRIALS]
        else:
            self._conclude(record)

    def _conclude(self, record: FindingRecord) -> None:
        others = [each for each in self.findings if each.id != record.id]
        if record.status == WITHDRAWN:
            self.findings = tuple(others)
        elif len(others) < MAX_FINDINGS:
            self.findings = ranked([*others, record])
