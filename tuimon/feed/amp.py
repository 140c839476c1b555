"""The AMP ledger's part of a history: counts, what was left out, and the newest of each record."""

from __future__ import annotations

from tuimon.feed.history import AmpHistory
from tuimon.model.amp import AmpCalls, AmpSkip, AmpVerdict, add_skip
from tuimon.model.records import DeviceStats, Step


class AmpFold:
    """Folds what concerns the GradScaler. Not shared between threads.

    Attributes:
        skips: updates left out, oldest first, bounded.
        calls, verdict: the newest record of that type.
    """

    def __init__(self) -> None:
        self.skips: list[AmpSkip] = []
        self.calls: AmpCalls | None = None
        self.verdict: AmpVerdict | None = None
        self._attempted = 0
        self._newest: int | None = None
        self._skipped = 0
        self._scale_first: float | None = None
        self._scale_last: float | None = None
        self._last_skipped: int | None = None

    def add(self, record: AmpSkip | AmpCalls | AmpVerdict) -> None:
        """Take one record of the ledger in."""
        if isinstance(record, AmpSkip):
            add_skip(self.skips, record)
        elif isinstance(record, AmpCalls):
            self.calls = record
        else:
            self.verdict = record

    def count(self, record: Step | DeviceStats) -> None:
        """Count an update that had a loss scale; where it lies on a device, its late part."""
        if record.loss_scale is None or record.step == self._newest:
            return
        self._newest = record.step
        self._attempted += 1
        if self._scale_first is None:
            self._scale_first = record.loss_scale
        self._scale_last = record.loss_scale
        left_out = isinstance(record, Step) and record.skipped and record.found_inf is not False
        if bool(record.found_inf) or left_out:
            self._skipped += 1
            self._last_skipped = record.step

    def counts(self) -> AmpHistory:
        """The counts as the history has them."""
        return AmpHistory(
            attempted=self._attempted,
            skipped=self._skipped,
            scale_first=self._scale_first,
            scale_last=self._scale_last,
            last_skipped_step=self._last_skipped,
        )
