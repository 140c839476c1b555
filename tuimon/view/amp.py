"""The AMP ledger as a viewer has it: its own count, and what the scribe concluded."""

from __future__ import annotations

from tuimon.diagnose.amp import NONE, AmpLedger
from tuimon.feed.history import History
from tuimon.model.amp import AmpVerdict
from tuimon.model.records import AnyRecord
from tuimon.view.frame import Amp


class AmpAccount:
    """Feeds a ledger and turns it into the part of a frame. Belongs to one thread."""

    def __init__(self) -> None:
        self._ledger = AmpLedger()
        self._told: AmpVerdict | None = None
        self._amp: Amp | None = None
        self._is_new = False

    def see(self, record: AnyRecord) -> None:
        """Take one record in; those that do not concern it are nothing to it."""
        if isinstance(record, AmpVerdict):
            self._told = record
        else:
            for _ in self._ledger.see(record):
                pass
        self._is_new = True

    def resume(self, history: History) -> None:
        """Go on from what a late viewer takes over."""
        amp = history.amp
        self._ledger.resume(
            attempted=amp.attempted,
            skipped=amp.skipped,
            scales=(amp.scale_first, amp.scale_last),
            last_skipped=amp.last_skipped_step,
        )
        for record in (*history.amp_skips, history.amp_calls, history.amp_verdict):
            if record is not None:
                self.see(record)
        self._is_new = True

    @property
    def frame(self) -> Amp | None:
        """The account of this moment; None while no GradScaler has been seen."""
        if self._is_new:
            self._is_new = False
            self._amp = self._drawn()
        return self._amp

    def _drawn(self) -> Amp | None:
        ledger, told = self._ledger, self._told
        if not ledger.attempted and not ledger.skips and ledger.calls is None:
            return None
        # The scribe has seen the run from its first step; without one the own count must do.
        own = ledger.verdict
        verdict, why = (told.verdict, told.why) if told is not None else (own, ledger.why)
        return Amp(
            scale=ledger.scale_last,
            skipped=ledger.skipped,
            attempted=ledger.attempted,
            last_skipped_step=ledger.last_skipped,
            scale_first=ledger.scale_first,
            verdict=verdict or NONE,
            why=why,
            skips=tuple(ledger.skips),
            calls=ledger.calls,
            gradient=ledger.gradient_headroom,
            activation=ledger.activation_headroom,
        )
