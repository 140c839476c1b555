"""The GradScaler's account: its scale, what it left out, and whether it still finds a scale."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.incidents import MAX_WAITING, PRIMARY, Detector
from tuimon.model.records import AnyRecord, DeviceStats, Step, Symptom
from tuimon.model.units import number

NONE, CALIBRATING, HEALTHY, COLLAPSING = "none", "calibrating", "healthy", "collapsing"

# Updates in a row that end the calibration: fewer may be luck between two overflows.
CALIBRATED_AFTER = 10
# At a scale below 1 the scaler makes gradients smaller: what still overflows, overflows by itself.
USEFUL_SCALE = 1.0
SKIPS_BELOW_USEFUL = 3
# From the default 65,536 these many halvings reach 2^-8; no calibration needs them.
SKIPS_FROM_START = 24
# Once the scale is known, these many halvings mean that gradients grew 4096-fold at a stroke.
SKIPS_ONCE_CALIBRATED = 12


class AmpLedger(Detector):
    """Counts what the GradScaler of the primary optimizer did.

    Attributes:
        scale_first, scale_last: loss scale of the first and the newest attempted update.
        attempted, skipped: updates that had a loss scale, and those left out.
        skipped_in_a_row: length of the row that the newest update belongs to.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self.scale_first: float | None = None
        self.scale_last: float | None = None
        self.attempted = 0
        self.skipped = 0
        self.skipped_in_a_row = 0
        self._made_in_a_row = 0
        self._is_calibrated = False
        self._row_begins: int | None = None
        self._below_useful = 0
        self._is_collapsing = False
        self._late: dict[int, float] = {}  # step -> scale, where the verdict is still to come

    @property
    def verdict(self) -> str:
        """One word for the report."""
        if self.attempted == 0:
            return NONE
        if self._is_collapsing:
            return COLLAPSING
        return HEALTHY if self._is_calibrated else CALIBRATING

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        if isinstance(record, Step) and record.optimizer == PRIMARY:
            if record.loss_scale is None:
                return
            if record.late and record.found_inf is None and not record.skipped:
                self._late[record.step] = record.loss_scale
                if len(self._late) > MAX_WAITING:
                    del self._late[next(iter(self._late))]
                return
            yield from self._count(record.step, record.loss_scale, record.skipped)
        elif isinstance(record, DeviceStats) and record.optimizer == PRIMARY:
            scale = self._late.pop(record.step, None)
            if scale is not None:
                yield from self._count(record.step, scale, bool(record.found_inf))

    def _count(self, step: int, scale: float, skipped: bool) -> Iterator[Symptom]:
        self.attempted += 1
        self.scale_first = scale if self.scale_first is None else self.scale_first
        self.scale_last = scale
        if not skipped:
            self._made_in_a_row += 1
            self._is_calibrated |= self._made_in_a_row >= CALIBRATED_AFTER
            self.skipped_in_a_row = self._below_useful = 0
            self._is_collapsing = False
            return
        self.skipped += 1
        if self.skipped_in_a_row == 0:
            self._row_begins = step
        self.skipped_in_a_row += 1
        self._made_in_a_row = 0
        self._below_useful += scale < USEFUL_SCALE
        if not self._is_collapsing and self._collapses():
            self._is_collapsing = True
            detail = (
                f"{self.skipped_in_a_row} updates in a row left out, the loss scale fell to "
                f"{number(scale)}: the overflow does not come from the scale"
            )
            kind = "loss-scale-collapse"
            yield Symptom(kind, self._row_begins, self._rank, "critical", detail)

    def _collapses(self) -> bool:
        limit = SKIPS_ONCE_CALIBRATED if self._is_calibrated else SKIPS_FROM_START
        return self._below_useful >= SKIPS_BELOW_USEFUL or self.skipped_in_a_row >= limit
