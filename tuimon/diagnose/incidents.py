"""What detectors share: their interface, and the hysteresis that makes one incident one symptom."""

from __future__ import annotations

from collections.abc import Iterable

from tuimon.model.causes import SEVERITIES
from tuimon.model.records import AnyRecord, Symptom

RECOVERY_STEPS = 20  # healthy observations in a row that end an incident
MAX_WAITING = 64  # records of one kind that may wait for the rest of their story
PRIMARY = 0  # the optimizer whose steps count
MAX_INCIDENTS = 50  # per incident kind; the run has been described well enough by then


class Detector:
    """Sees every record of one rank in order and answers with new symptoms."""

    def see(self, record: AnyRecord) -> Iterable[Symptom]:
        """Symptoms that this record is the first to show."""
        raise NotImplementedError

    def close(self) -> Iterable[Symptom]:
        """Symptoms that waited for a record that will not come: the run has ended."""
        return ()

    def unrecovered(self) -> Iterable[str]:
        """Kinds of the critical incidents that are open now."""
        return ()


class Incident:
    """A row of bad observations, reported when it begins and when it gets worse."""

    def __init__(self, recovery_steps: int = RECOVERY_STEPS) -> None:
        self._recovery_steps = recovery_steps
        self._level = -1  # index into SEVERITIES while open
        self._calm = 0
        self._begun = 0

    @property
    def is_critical(self) -> bool:
        """Open, and critical at its worst."""
        return self._level == SEVERITIES.index("critical")

    @property
    def is_calm(self) -> bool:
        """The newest observation was a healthy one, or there was none."""
        return self._level < 0 or self._calm > 0

    def worsens(self, severity: str) -> bool:
        """Note a bad observation; True when it begins an incident or raises its severity."""
        self._calm = 0
        level = SEVERITIES.index(severity)
        if level <= self._level:
            return False
        self._level = level
        self._begun += 1
        return self._begun <= MAX_INCIDENTS

    def calm(self) -> None:
        """Note a healthy observation."""
        if self._level < 0:
            return
        self._calm += 1
        if self._calm >= self._recovery_steps:
            self._level, self._calm = -1, 0
