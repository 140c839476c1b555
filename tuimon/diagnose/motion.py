"""How the primary optimizer has moved: rates, first updates, steps against weights. Finds nothing.

Bounded whatever the length of the run.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from tuimon.diagnose.incidents import PRIMARY
from tuimon.model.graphs import GraphSeen
from tuimon.model.records import AnyRecord, Batch, Facts, LayerTable, Step, loss_of
from tuimon.model.samples import Activation, Activations, ParameterSamples, StartingWeights

FIRST = 64  # updates of which everything is kept
NEWEST = 64
MAX_POINTS = 512  # of a history; beyond it every second one is dropped
MAX_RATIOS = 64
MAX_RAISES = 16
MAX_LEAPS = 16
ROW = 3  # updates in a row that make a peak
USUAL = 32  # updates whose median a gradient norm is compared with
MIN_USUAL = 8
LEAP = 1e3  # times that median
OVERFLOWN = 3.4e38  # the end of single precision stands for what lies beyond
AFTER = 3  # updates after a leap in which the loss shows what it did
RAISED = 3.0  # a rate this many times the one before was raised, and is not warming up


@dataclass(frozen=True, slots=True)
class Moment:
    """One update; what is not known is None."""

    step: int
    loss: float | None
    grad_norm: float | None
    rate: float | None
    max_norm: float | None = None


@dataclass(slots=True)
class Leap:
    """A gradient norm far above those before it.

    Attributes:
        usual: the median of the norms before, at most `USUAL`.
        loss, level: of this update, and the median of those before.
        after: the largest loss within the next updates, +Inf where one is not finite.
    """

    step: int
    norm: float
    usual: float
    loss: float
    level: float
    clipped: bool
    after: float = 0.0

    @property
    def times(self) -> float:
        return self.norm / self.usual


@dataclass(frozen=True, slots=True)
class Begun:
    """One weight before the first update.

    Attributes:
        gain: how much it multiplies the size of its input: rms times the root of its fan-in; 1.4
            keeps the size through ReLUs, 1 through linear layers.
        is_constant: all its elements are one number.
        faint: share of elements that are not zero and too small for any initialisation.
    """

    name: str
    fan_in: int
    gain: float
    rms: float
    absmax: float
    is_constant: bool
    faint: float


class History:
    """(step, value) of a long run: evenly thinned, the newest always among them."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []
        self._stride = 1
        self._count = 0

    def add(self, step: int, value: float) -> None:
        """Take a value in; steps do not fall."""
        if self.points and self._count % self._stride:
            self.points[-1] = step, value
        else:
            self.points.append((step, value))
        self._count += 1
        if len(self.points) > MAX_POINTS:
            del self.points[1::2]
            self._stride *= 2


class Motion:
    """Bounded figures of how the weights were moved.

    Attributes:
        settings: numbers of the primary optimizer's first group.
        scheduled: a scheduler of torch holds the optimizer.
        is_scaled: a GradScaler multiplies the loss.
        first, newest: updates at both ends.
        rates, losses, norms: over the whole run.
        leaps: gradients far above those before them.
        raises: (step, rate before, rate after) where a rate was raised at once.
        ratios: (step, median ratio of update to weight of matrices and kernels).
        begun: weights before the first update, matrices and kernels only.
        tables: the others: biases, vectors, embeddings.
        graph: the loss's graph.
        outputs: newest look at each module's outputs.
        first_scale: loss scale of the first update.
    """

    def __init__(self) -> None:
        self.settings: dict[str, float] = {}
        self.scheduled = self.is_scaled = False
        self.first: list[Moment] = []
        self.newest: deque[Moment] = deque(maxlen=NEWEST)
        self.rates, self.losses, self.norms = History(), History(), History()
        self.raises: list[tuple[int, float, float]] = []
        self.leaps: list[Leap] = []
        self.ratios: deque[tuple[int, float]] = deque(maxlen=MAX_RATIOS)
        self.begun: list[Begun] = []
        self.tables: list[Begun] = []
        self.graph: GraphSeen | None = None
        self.outputs: dict[str, Activation] = {}
        self.first_scale: float | None = None
        self._matrices: set[str] = set()
        self._rate: float | None = None

    def see(self, record: AnyRecord) -> None:
        """Take one record in."""
        if isinstance(record, Step):
            if record.optimizer == PRIMARY:
                self._note_step(record)
        elif isinstance(record, LayerTable):
            shapes = zip(record.names, record.shapes, strict=False)
            self._matrices = {name for name, shape in shapes if len(shape) > 1}
        elif isinstance(record, Facts):
            self.settings = record.settings[0] if record.settings else {}
            self.scheduled = "initial_lr" in self.settings
            self.is_scaled = record.scaler is not None
        elif isinstance(record, StartingWeights):
            found = begun_of(record)
            self.begun = [weight for weight in found if weight.fan_in > 1]
            self.tables = [weight for weight in found if weight.fan_in <= 1]
        elif isinstance(record, ParameterSamples):
            self._note_samples(record)
        elif isinstance(record, Activations):
            for item in record.items:
                if item.module in self.outputs or len(self.outputs) < MAX_POINTS:
                    self.outputs[item.module] = item
        elif isinstance(record, Batch) and record.graph is not None and self.graph is None:
            self.graph = record.graph

    # --- figures ----------------------------------------------------------------------------------

    @property
    def start(self) -> float | None:
        """The loss of the untrained model."""
        known = [m.loss for m in self.first[:5] if m.loss is not None]
        return min(known[0], median(known)) if known else None

    @property
    def level(self) -> float | None:
        """The loss in the newest quarter of the run."""
        losses = [loss for _, loss in self.losses.points]
        return median(losses[-max(1, len(losses) // 4) :]) if losses else None

    @property
    def peak(self) -> float:
        """What the loss stayed above for some of the first updates in a row; 0 where unknown.

        One hard batch is no peak; a loss that is not finite is none either.
        """
        losses = [m.loss for m in self.first if m.loss is not None]
        rows = [losses[at : at + ROW] for at in range(len(losses) - ROW + 1)]
        return max((min(row) for row in rows), default=0.0)

    @property
    def early_ratio(self) -> float | None:
        """The largest of the first three ratios of update to weight."""
        return max((ratio for _, ratio in list(self.ratios)[:3]), default=None)

    @property
    def usual_ratio(self) -> float | None:
        """The median ratio of update to weight."""
        return median(ratio for _, ratio in self.ratios) if self.ratios else None

    @property
    def usual_norm(self) -> float | None:
        """The median gradient norm of the newest updates."""
        known = [m.grad_norm for m in self.newest if m.grad_norm is not None]
        return median(known) if known else None

    @property
    def overshoot(self) -> tuple[float, float] | None:
        """(fall that the gradient promised, rise that came) of the first update that overshot.

        To first order a step of gradient descent lowers the loss by rate times the squared norm.
        """
        for now, following in pairwise(self.first):
            if now.loss is None or following.loss is None or not now.rate or not now.grad_norm:
                continue
            promised, rise = now.rate * now.grad_norm**2, following.loss - now.loss
            if rise > promised > 0 and rise > abs(now.loss):
                return promised, rise
        return None

    @property
    def is_clipped(self) -> bool:
        """Whether gradients were clipped by their norm in most of the first updates."""
        bounds = [m for m in self.first if m.max_norm is not None]
        return len(bounds) > len(self.first) / 2

    # --- parts ------------------------------------------------------------------------------------

    def _note_step(self, record: Step) -> None:
        rate = record.lrs[0] if record.lrs else None
        loss, norm = loss_of(record), record.grad_norm
        if norm == math.inf and not record.bad_total:
            norm = OVERFLOWN  # finite gradients whose squares are not
        moment = Moment(record.step, _finite(loss), _finite(norm), rate, record.max_norm)
        if not self.first:
            self.first_scale = record.loss_scale
        self._note_leap(moment, loss)
        if len(self.first) < FIRST:
            self.first.append(moment)
        self.newest.append(moment)
        if moment.loss is not None:
            self.losses.add(record.step, moment.loss)
        if moment.grad_norm is not None:
            self.norms.add(record.step, moment.grad_norm)
        if rate is None:
            return
        self.rates.add(record.step, rate)
        before, self._rate = self._rate, rate
        # A warm-up begins at next to nothing and doubles at first.
        settled = len(self.rates.points) > 8
        if before and rate > RAISED * before and settled and len(self.raises) < MAX_RAISES:
            self.raises.append((record.step, before, rate))

    def _note_leap(self, moment: Moment, loss: float | None) -> None:
        for leap in self.leaps[-AFTER:]:
            if moment.step - leap.step <= AFTER and loss is not None:
                leap.after = max(leap.after, moment.loss if moment.loss is not None else math.inf)
        if moment.grad_norm is None or moment.loss is None or len(self.leaps) >= MAX_LEAPS:
            return
        before = list(self.newest)[-USUAL:]
        norms = [m.grad_norm for m in before if m.grad_norm is not None]
        losses = [m.loss for m in before if m.loss is not None]
        if len(norms) < MIN_USUAL or len(losses) < MIN_USUAL:
            return
        usual = median(norms)
        if usual > 0 and moment.grad_norm >= LEAP * usual:
            clipped = moment.max_norm is not None
            self.leaps.append(
                Leap(moment.step, moment.grad_norm, usual, moment.loss, median(losses), clipped)
            )

    def _note_samples(self, record: ParameterSamples) -> None:
        if record.optimizer != PRIMARY:
            return
        found = [
            item.update_ratio
            for item in record.items
            if item.update_ratio is not None
            and item.name in self._matrices
            and math.isfinite(item.update_ratio)
        ]
        if found:
            self.ratios.append((record.step, median(found)))


def begun_of(record: StartingWeights) -> list[Begun]:
    """The parameters that were looked at, as far as they are finite."""
    columns = (record.rms, record.absmax, record.spread, record.faint)
    rms, absmax, spread, faint = (np.frombuffer(each, "<f4").tolist() for each in columns)
    rows = zip(record.names, record.fan_in, rms, absmax, spread, faint, strict=False)
    return [
        Begun(name, fan_in, size * math.sqrt(fan_in), size, largest, apart == 0, small)
        for name, fan_in, size, largest, apart, small in rows
        if math.isfinite(size)
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
