"""What was found out about a run: autopsies, the crash, and the findings with their rank."""

from __future__ import annotations

from tuimon.feed.chronicle import MAX_AUTOPSIES
from tuimon.model.autopsy import Autopsy
from tuimon.model.crash import Crash
from tuimon.model.findings import MAX_FINDINGS, FindingRecord, ranked


class Scenes:
    """Bounded; every attribute is replaced as a whole, so that a frame may keep it.

    Attributes:
        autopsies: oldest first.
        findings: the newest of each id, the most certain first.
    """

    def __init__(self) -> None:
        self.autopsies: tuple[Autopsy, ...] = ()
        self.crash: Crash | None = None
        self.findings: tuple[FindingRecord, ...] = ()

    def add(self, record: Autopsy | Crash | FindingRecord) -> None:
        """Take in one record."""
        if isinstance(record, Autopsy):
            self.autopsies = (*self.autopsies, record)[:MAX_AUTOPSIES]
        elif isinstance(record, Crash):
            self.crash = record
        else:
            self._conclude(record)

    def _conclude(self, record: FindingRecord) -> None:
        others = [each for each in self.findings if each.id != record.id]
        if len(others) < MAX_FINDINGS:
            self.findings = ranked([*others, record])
