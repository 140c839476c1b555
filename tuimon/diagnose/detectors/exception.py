"""The exception that ended a script."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.crashes import crash_in_words
from tuimon.diagnose.incidents import PRIMARY, Detector
from tuimon.model.crash import Crash
from tuimon.model.records import AnyRecord, Goodbye, Step, Symptom
from tuimon.model.text import plain


class ExceptionRaised(Detector):
    """The script ended with an exception, as its last records say.

    The step of the symptom is the update that was being prepared, which has no record of its own.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._newest: int | None = None
        self._crash: Crash | None = None

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, Step) and record.optimizer == PRIMARY:
            self._newest = record.step
        elif isinstance(record, Crash):
            self._crash = record
        elif isinstance(record, Goodbye) and record.kind == "exception":
            yield self._symptom(record)

    def close(self) -> Iterator[Symptom]:
        if self._crash is not None:  # the process ended between its last two records
            yield self._symptom(None)

    def _symptom(self, goodbye: Goodbye | None) -> Symptom:
        crash, self._crash = self._crash, None
        if crash is not None:
            step: int | None = crash.step
            detail = crash_in_words(crash)
        else:
            # Whether the next one was being prepared nobody has seen.
            step = goodbye.step if goodbye and goodbye.step is not None else self._newest
            detail = plain(goodbye.detail) if goodbye else ""
        return Symptom("exception", step, self._rank, "critical", detail or "the script raised")
