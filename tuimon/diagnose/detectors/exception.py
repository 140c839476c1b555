"""The exception that ended a script."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.incidents import PRIMARY, Detector
from tuimon.model.records import AnyRecord, Goodbye, Step, Symptom
from tuimon.model.text import plain


class ExceptionRaised(Detector):
    """The script ended with an exception, as it said in its last record."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._newest: int | None = None

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, Step) and record.optimizer == PRIMARY:
            self._newest = record.step
        if isinstance(record, Goodbye) and record.kind == "exception":
            step = record.step if record.step is not None else self._newest
            detail = plain(record.detail) or "the script raised"
            yield Symptom("exception", step, self._rank, "critical", detail)
