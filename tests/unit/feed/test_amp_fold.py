"""What a late viewer takes over of the AMP ledger, also where the scale lies on a device."""

from __future__ import annotations

from tuimon.feed.amp import AmpFold
from tuimon.feed.history import AmpHistory
from tuimon.model.amp import AmpCalls, AmpSkip, AmpVerdict
from tuimon.model.records import DeviceStats, Step


def test_updates_are_counted_once_wherever_their_scale_lies() -> None:
    fold = AmpFold()
    fold.count(Step(0, 0))  # full precision
    fold.count(Step(1, 0, loss_scale=8.0, skipped=True))
    fold.count(DeviceStats(1, loss_scale=8.0, found_inf=True))
    fold.count(Step(2, 0, late=True, skipped=True))
    fold.count(DeviceStats(2, loss_scale=4.0, found_inf=True))
    fold.count(Step(3, 0, loss_scale=2.0, skipped=True, found_inf=False))
    assert fold.counts() == AmpHistory(
        attempted=3, skipped=2, scale_first=8.0, scale_last=2.0, last_skipped_step=2
    )


def test_the_newest_of_each_record_is_kept() -> None:
    fold = AmpFold()
    for record in (AmpSkip(1), AmpCalls(scaled=1), AmpVerdict(1, "calibrating")):
        fold.add(record)
    for record in (AmpSkip(2), AmpCalls(scaled=2), AmpVerdict(2, "healthy")):
        fold.add(record)
    assert [skip.step for skip in fold.skips] == [1, 2]
    assert fold.calls is not None and fold.calls.scaled == 2
    assert fold.verdict is not None and fold.verdict.verdict == "healthy"
