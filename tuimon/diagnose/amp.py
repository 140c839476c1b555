"""The GradScaler's account: its scale, what it left out, and whether it still finds a scale."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from tuimon.diagnose.incidents import MAX_WAITING, PRIMARY, Detector
from tuimon.model.amp import BY_TABLE, AmpCalls, AmpSkip, AmpVerdict, Headroom, add_skip
from tuimon.model.records import (
    NON_FINITE,
    AnyRecord,
    DeviceStats,
    LayerTable,
    Step,
    Symptom,
    loss_of,
)
from tuimon.model.samples import Activations, ParameterSamples
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
# A loss that is not finite before it is scaled fits no scale; a row this long is no single batch.
SKIPS_WITH_BAD_LOSS = 3
# So many skips after the scale had fitted, each at a smaller one, while samples of gradients and
# outputs left so much room: a sample misses a batch, three misses in a row fit no overflow.
SKIPS_WITH_ROOM = 3
ROOM = 100.0
# Gradients that were there at the first scale and are exactly 0 at one 4096 times smaller, in so
# many updates in a row, fell below the smallest number of half precision (2^-24).
STARVED_AFTER = 10
STARVED_FALL = 2.0**12
# Below the smallest normal number of single precision the scaler's own 1 / scale overflows.
SMALLEST_SCALE = 2.0**-126
MAX_HEADROOMS = 4096  # names whose newest sample is kept


class AmpLedger(Detector):
    """Counts what the GradScaler of the primary optimizer did.

    Attributes:
        scale_first, scale_last: loss scale of the first and the newest attempted update.
        attempted, skipped: updates that had a loss scale, and those left out.
        skipped_in_a_row: length of the row that the newest update belongs to.
        last_skipped: step of the newest one.
        skips: the updates left out, each with its first overflowing gradient; bounded.
        calls: what was called in which order, as the trainer counted it.
        why: the reason for a collapse, a sentence; "" otherwise.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self.scale_first: float | None = None
        self.scale_last: float | None = None
        self.scale_min: float | None = None
        self.scale_max: float | None = None
        self.attempted = 0
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.last_skipped: int | None = None
        self.skips: list[AmpSkip] = []
        self.calls: AmpCalls | None = None
        self.why = ""
        self._made = 0
        self._made_in_a_row = 0
        self._starved = 0
        self._is_calibrated = False
        self._row_begins: int | None = None
        self._below_useful = 0
        self._bad_losses = 0
        self._lost_scale = ""
        self._roomy: list[tuple[int, float]] = []  # (step, scale) of skips that had room
        self._late: dict[int, Step] = {}  # by step, where the verdict is still to come
        self._told = NONE
        self._names: list[str] = []
        self._gradients: dict[str, Headroom] = {}
        self._activations: dict[str, Headroom] = {}

    @property
    def verdict(self) -> str:
        """One word for the report."""
        if self.attempted == 0:
            return NONE
        if self.why:
            return COLLAPSING
        return HEALTHY if self._is_calibrated else CALIBRATING

    @property
    def gradient_headroom(self) -> Headroom | None:
        """The tightest of the newest samples of scaled gradients; None before any."""
        return max(self._gradients.values(), key=_absmax, default=None)

    @property
    def activation_headroom(self) -> Headroom | None:
        """The tightest of the newest samples of half-precision outputs; None before any."""
        return max(self._activations.values(), key=_absmax, default=None)

    def resume(
        self,
        *,
        attempted: int,
        skipped: int,
        scales: tuple[float | None, float | None],
        last_skipped: int | None,
    ) -> None:
        """Go on from the counts of somebody who saw the run from its first step."""
        self.attempted, self.skipped, self.last_skipped = attempted, skipped, last_skipped
        self.scale_first, self.scale_last = scales
        known = [scale for scale in scales if scale is not None]
        self.scale_min, self.scale_max = min(known, default=None), max(known, default=None)
        self._made = attempted - skipped
        self._is_calibrated = self._made >= CALIBRATED_AFTER and self._made >= skipped

    def changed(self) -> AmpVerdict | None:
        """The verdict, once each time it becomes another one."""
        if self.verdict == self._told:
            return None
        self._told = self.verdict
        step = self.last_skipped if self.why else None
        return AmpVerdict(step, self.verdict, self.why)

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        match record:
            case Step() if record.optimizer == PRIMARY:
                if record.late:
                    self._late[record.step] = record
                    if len(self._late) > MAX_WAITING:
                        del self._late[next(iter(self._late))]
                elif record.loss_scale is not None:
                    yield from self._count(record, record, record.loss_scale)
            case DeviceStats() if record.optimizer == PRIMARY:
                self._name_first(record)
                host = self._late.pop(record.step, None)
                scale = record.loss_scale
                if scale is None and host is not None:
                    scale = host.loss_scale
                if host is not None and scale is not None:
                    yield from self._count(host, record, scale)
            case LayerTable():
                self._names = record.names
            case AmpSkip():
                add_skip(self.skips, record)
            case AmpCalls():
                self.calls = record
            case ParameterSamples() | Activations():
                self._sample(record)
            case _:
                pass

    def _count(self, host: Step, figures: Step | DeviceStats, scale: float) -> Iterator[Symptom]:
        # Somebody else left the update out where the scaler found nothing.
        skipped = bool(figures.found_inf) or (host.skipped and host.found_inf is not False)
        self._take_scale(scale)
        if (lost := _lost_in_words(scale)) and lost != self._lost_scale:
            self._lost_scale = lost
            told = f"the loss scale is {lost}: no update can succeed any more"
            self.why = self.why or told
            yield self._symptom(host.step, told)
        if not skipped:
            yield from self._on_made(host, figures, scale)
            return
        yield from self._note_room(host.step, scale)
        self.skipped += 1
        self.last_skipped = host.step
        if self.skipped_in_a_row == 0:
            self._row_begins = host.step
        self.skipped_in_a_row += 1
        self._made_in_a_row = self._starved = 0
        self._below_useful += scale < USEFUL_SCALE
        loss = loss_of(figures)
        is_bad = loss is not None and not math.isfinite(loss)
        self._bad_losses = self._bad_losses + 1 if is_bad else 0
        if not self.why and (reason := self._collapse()):
            self.why = (
                f"{self.skipped_in_a_row} updates in a row left out, the loss scale fell to "
                f"{number(scale)}: {reason}"
            )
            yield self._symptom(self._row_begins, self.why)

    def _take_scale(self, scale: float) -> None:
        self.attempted += 1
        if self.scale_first is None:
            self.scale_first = self.scale_min = self.scale_max = scale
        elif self.scale_last is not None and scale > self.scale_last:
            # The scaler raises it only after a whole interval of updates.
            self._is_calibrated = True
            self._below_useful = 0
        self.scale_last = scale
        self.scale_min = min(scale, self.scale_min or scale)
        self.scale_max = max(scale, self.scale_max or scale)

    def _on_made(self, host: Step, figures: Step | DeviceStats, scale: float) -> Iterator[Symptom]:
        self._made += 1
        self._made_in_a_row += 1
        found_by_count = self._made >= CALIBRATED_AFTER and self._made >= self.skipped
        self._is_calibrated |= self._made_in_a_row >= CALIBRATED_AFTER or found_by_count
        self.skipped_in_a_row = self._below_useful = self._bad_losses = 0
        self._lost_scale = ""
        fell = self.scale_first is not None and scale * STARVED_FALL <= self.scale_first
        self._starved = self._starved + 1 if fell and figures.grad_norm == 0 else 0
        self.why = ""
        if self._starved >= STARVED_AFTER:
            self.why = (
                f"at a loss scale of {number(scale)} every gradient is 0: they are too small for "
                "half precision without a larger scale"
            )
        if self._starved == STARVED_AFTER:
            yield self._symptom(host.step - STARVED_AFTER + 1, self.why)

    def _note_room(self, step: int, scale: float) -> Iterator[Symptom]:
        """An update is left out: whether its scale can be the reason."""
        gradient, activation = self.gradient_headroom, self.activation_headroom
        known = [each for each in (gradient, activation) if each is not None]
        roomy = gradient is not None and all(each.factor >= ROOM for each in known)
        if not roomy or self._made_in_a_row < CALIBRATED_AFTER:
            return
        if self._roomy and scale >= self._roomy[-1][1]:
            self._roomy.clear()
        self._roomy.append((step, scale))
        if len(self._roomy) == SKIPS_WITH_ROOM and gradient is not None:
            steps = ", ".join(f"{at:,}" for at, _ in self._roomy)
            detail = (
                f"updates {steps} were left out at ever smaller scales, down to {number(scale)}, "
                f"although scaled gradients had room for {number(gradient.factor)} times more: "
                f"no scale explains that"
            )
            yield Symptom("non-finite-gradient", step, self._rank, "warning", detail)

    def _collapse(self) -> str:
        """Why the scaler will not find a scale; "" while it may."""
        if self._bad_losses >= SKIPS_WITH_BAD_LOSS:
            return "the loss is not finite before it is scaled, so no scale can help"
        limit = SKIPS_ONCE_CALIBRATED if self._is_calibrated else SKIPS_FROM_START
        if self._below_useful >= SKIPS_BELOW_USEFUL or self.skipped_in_a_row >= limit:
            return "the overflow does not come from the scale"
        return ""

    def _symptom(self, step: int | None, detail: str) -> Symptom:
        return Symptom("loss-scale-collapse", step, self._rank, "critical", detail)

    def _name_first(self, record: DeviceStats) -> None:
        """Fill in the first overflowing gradient where its flags came after the skip."""
        for place in range(len(self.skips) - 1, max(-1, len(self.skips) - 1 - MAX_WAITING), -1):
            skip = self.skips[place]
            if skip.step != record.step or skip.optimizer != record.optimizer or skip.name:
                continue
            flags = np.frombuffer(record.flags, np.uint8)
            bad = np.flatnonzero(flags & NON_FINITE)
            if len(bad) and bad[-1] < len(self._names):
                self.skips[place] = msgspec.structs.replace(
                    skip, name=self._names[bad[-1]], tensors=len(bad), order=BY_TABLE
                )

    def _sample(self, record: ParameterSamples | Activations) -> None:
        if isinstance(record, Activations):
            for each in record.items:
                if each.dtype == "float16" and each.absmax is not None:
                    self._keep(self._activations, each.module, each.absmax, record.step)
            return
        if self.scale_last is None or record.optimizer != PRIMARY:
            return
        for sample in record.items:
            if sample.grad_absmax is not None:
                scaled = sample.grad_absmax * self.scale_last
                self._keep(self._gradients, sample.name, scaled, record.step)

    def _keep(self, into: dict[str, Headroom], name: str, absmax: float, step: int) -> None:
        if math.isfinite(absmax) and (name in into or len(into) < MAX_HEADROOMS):
            into[name] = Headroom(name, absmax, step)


def _absmax(headroom: Headroom) -> float:
    return headroom.absmax


def _lost_in_words(scale: float) -> str:
    """What a scale is that no gradient survives; "" for a usable one."""
    if scale == 0:
        return "0"
    return "below what single precision can divide by" if scale < SMALLEST_SCALE else ""
