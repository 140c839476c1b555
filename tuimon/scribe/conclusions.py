"""What viewers have been told of the causes, and what has changed since. Publishes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from tuimon.diagnose.findings import Finding, record_of
from tuimon.model.findings import WITHDRAWN, FindingRecord


class Conclusions:
    """Findings as they were told, each with its place in the verdict."""

    def __init__(self) -> None:
        self._told: dict[str, FindingRecord] = {}

    def changed(self, findings: Sequence[Finding], time_ns: int) -> list[FindingRecord]:
        """The records that bring a reader from what was told before to these.

        Args:
            findings: all of them, the likeliest first.
            time_ns: unix time of what is new.
        """
        records = []
        for place, finding in enumerate(findings):
            record = record_of(finding, time_ns, place)
            known = self._told.get(finding.id)
            if known is not None:
                moved = structs.replace(known, place=place)
                if structs.replace(record, time_ns=known.time_ns) == moved:
                    record = moved
            if record != known:
                records.append(record)
            self._told[finding.id] = record
        left = self._told.keys() - {each.id for each in findings}
        for name in sorted(left):
            gone = self._told.pop(name)
            records.append(structs.replace(gone, status=WITHDRAWN, time_ns=time_ns))
        return records
