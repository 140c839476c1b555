"""What the run is like beside its symptoms: rates, data, losses, layers, calls. Finds nothing."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

import numpy as np
import numpy.typing as npt

from tuimon.diagnose.incidents import PRIMARY
from tuimon.diagnose.loops import LoopFigures
from tuimon.diagnose.motion import Motion
from tuimon.diagnose.reach import Reach
from tuimon.model.amp import AmpCalls
from tuimon.model.batches import LossSeen, TensorSummary
from tuimon.model.crash import Crash
from tuimon.model.records import AnyRecord, Batch, LayerTable, Step, loss_of
from tuimon.model.samples import Activations

FIRST_STEPS = 32  # whose rates tell whether the training warms up
NEWEST = 8
FAINT = 1e-3  # of the highest learning rate: schedules end there, they do not live there
MAX_KINDS = 256
_HALF = "float16"


class Circumstances:
    """Bounded figures of the primary optimizer's training.

    Attributes:
        table: the newest layer table.
        rates: learning rate of the first group in the first `FIRST_STEPS` updates.
        top_rate, last_rate: highest and newest of them over the whole run.
        losses, grad_norms: of the newest updates that were finite, the newest last.
        first_loss: of the first update.
        norms: per-parameter gradient norms of the newest finite update.
        inputs: tensors of the first batch.
        seen: what the loss functions were given at first; `spread` is kept from any later one.
        calls: what was called in which order around a GradScaler.
        crash: the exception that ended the run.
        kinds: class of a module -> dtypes of its outputs, as far as activations were sampled.
        most_calls: the most calls of one module within a forward, and that module.
        accumulated: the most backward calls of one update.
        updates: attempted updates.
        faint: updates with a learning rate below `FAINT` of the highest one so far.
        level_when_faint: loss at the first of them.
        motion: how the weights were moved.
        loop: how the loop puts its parts together.
        reach: how far updates can have moved the weights.
    """

    def __init__(self) -> None:
        self.table: LayerTable | None = None
        self.rates: list[float] = []
        self.top_rate = self.last_rate = 0.0
        self.losses: deque[float] = deque(maxlen=NEWEST)
        self.grad_norms: deque[float] = deque(maxlen=NEWEST)
        self.first_loss: float | None = None
        self.norms: npt.NDArray[np.float32] | None = None
        self.inputs: list[TensorSummary] = []
        self.seen: list[LossSeen] = []
        self.spread: list[list[int]] = []
        self.calls: AmpCalls | None = None
        self.crash: Crash | None = None
        self.kinds: dict[str, set[str]] = {}
        self.most_calls: tuple[int, str] = (0, "")
        self.accumulated = 0
        self.updates = 0
        self.faint = 0
        self.level_when_faint: float | None = None
        self.motion = Motion()
        self.loop = LoopFigures()
        self.reach = Reach()

    def see(self, record: AnyRecord) -> None:
        """Take one record in."""
        self.motion.see(record)
        self.loop.see(record)
        self.reach.see(record)
        if isinstance(record, Step):
            if record.optimizer == PRIMARY:
                self._note_step(record)
        elif isinstance(record, LayerTable):
            self.table = record
        elif isinstance(record, Batch):
            self._note_batch(record)
        elif isinstance(record, Activations):
            self._note_activations(record)
        elif isinstance(record, AmpCalls):
            self.calls = record
        elif isinstance(record, Crash) and self.crash is None:
            self.crash = record

    @property
    def is_half(self) -> bool:
        """Whether some module computed in float16."""
        return any(_HALF in dtypes for dtypes in self.kinds.values())

    @property
    def warms_up(self) -> bool:
        """Whether the first learning rate was well below what the run came to use."""
        return bool(self.rates) and self.rates[0] < 0.5 * self.top_rate

    def shares(self) -> list[tuple[float, str]]:
        """(share of the squared gradient norm, parameter), the largest first."""
        if self.table is None or self.norms is None or len(self.norms) != len(self.table.names):
            return []
        squares = np.square(np.nan_to_num(self.norms.astype(np.float64)))
        total = float(squares.sum())
        if not total > 0:
            return []
        order = np.argsort(squares)[::-1]
        return [(float(squares[i]) / total, self.table.names[i]) for i in order[:NEWEST]]

    def _note_step(self, record: Step) -> None:
        self.updates += 1
        self.accumulated = max(self.accumulated, record.backward_calls)
        if record.lrs and record.lrs[0] is not None:
            self.last_rate = record.lrs[0]
            lost = loss_of(record)
            if lost is None or math.isfinite(lost):  # a schedule goes on after the end
                self.top_rate = max(self.top_rate, record.lrs[0])
            if len(self.rates) < FIRST_STEPS:
                self.rates.append(record.lrs[0])
            if self.last_rate < FAINT * self.top_rate:
                self.faint += 1
                if self.level_when_faint is None and self.losses:
                    self.level_when_faint = median(self.losses)
        loss, norm = loss_of(record), record.grad_norm
        if loss is not None and math.isfinite(loss):
            self.losses.append(loss)
            if self.first_loss is None:
                self.first_loss = loss
        if norm is not None and math.isfinite(norm):
            self.grad_norms.append(norm)
            if record.norms:
                self.norms = np.frombuffer(record.norms, "<f4")

    def _note_batch(self, record: Batch) -> None:
        if not self.inputs:
            self.inputs = record.inputs
        if not self.seen:
            self.seen = record.losses
        for seen in record.losses:
            if seen.spread and not self.spread:
                self.spread = seen.spread

    def _note_activations(self, record: Activations) -> None:
        for item in record.items:
            if item.kind in self.kinds or len(self.kinds) < MAX_KINDS:
                self.kinds.setdefault(item.kind, set()).add(item.dtype)
            self.most_calls = max(self.most_calls, (item.calls, item.module))
