"""A loss that is not finite.

The step of a symptom is the step in the record that shows it; where the record can only show it
later, the text says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tuimon.diagnose.batches import NewestBatches
from tuimon.diagnose.gradients import loss_in_words
from tuimon.diagnose.incidents import MAX_WAITING, PRIMARY, Detector, Incident
from tuimon.diagnose.updates import Update, Updates
from tuimon.model.records import AnyRecord, Loss, Symptom

ROW = 8  # losses of a training without optimizer, one after the other: none comes back


class NonFiniteLoss(Detector):
    """A loss that is NaN or Inf.

    Critical when the gradients of the same update are not finite and reach the weights; a warning
    when they are finite, when the update was left out, or when there was no update at all. A
    training that has no optimizer is lost where its loss was finite at first and is not any more.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._updates = Updates()
        self._batches = NewestBatches()
        self._has_updates = False
        self._early: dict[int, Loss] = {}  # by step: losses whose update is still to come
        self._incidents: dict[int, Incident] = {}

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        self._batches.see(record)
        if isinstance(record, Loss):
            if not math.isfinite(record.value) and len(self._early) < MAX_WAITING:
                self._early.setdefault(record.step, record)
            return
        for update in self._updates.see(record):
            yield from self._judge(update)

    def close(self) -> Iterator[Symptom]:
        for update in self._updates.close():
            yield from self._judge(update)
        yield from self._without_update(None)

    def unrecovered(self) -> Iterable[str]:
        if any(i.is_critical and not i.is_calm for i in self._incidents.values()):
            yield "non-finite-loss"

    def _judge(self, update: Update) -> Iterator[Symptom]:
        self._has_updates = True
        early = None
        if update.optimizer == PRIMARY:
            yield from self._without_update(update.step)
            early = self._early.pop(update.step, None)
        incident = self._incidents.setdefault(update.optimizer, Incident())
        bad = [value for value in update.losses if not math.isfinite(value)]
        if early is not None:
            bad.insert(0, early.value)
        if not bad:
            if update.losses:
                incident.calm()
            return
        severity = "critical" if update.is_poisonous else "warning"
        if not incident.worsens(severity):
            return
        text = loss_in_words(bad[0], early.site if early else "")
        note = self._batches.note(update.step, update.optimizer)
        yield self._symptom(update.step, severity, f"{text}; {update.fate}{note}")

    def _without_update(self, before: int | None) -> Iterator[Symptom]:
        """Losses whose update never came: the script left it out or ended."""
        severity, fate = "warning", "no update followed it"
        if before is None and not self._has_updates and self._is_lost():
            severity, fate = "critical", "it has not come back, in a training without optimizer"
        for step in sorted(self._early):
            if before is not None and step >= before:
                break
            loss = self._early.pop(step)
            if self._incidents.setdefault(PRIMARY, Incident()).worsens(severity):
                text = loss_in_words(loss.value, loss.site)
                note = self._batches.note(step)
                yield self._symptom(step, severity, f"{text}; {fate}{note}")

    def _is_lost(self) -> bool:
        """Whether calls in a row gave nothing finite after the first ones had."""
        steps = sorted(self._early)
        return len(steps) >= ROW and steps[0] > 0 and steps[ROW - 1] == steps[0] + ROW - 1

    def _symptom(self, step: int, severity: str, detail: str) -> Symptom:
        return Symptom("non-finite-loss", step, self._rank, severity, detail)
