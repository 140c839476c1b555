"""How the loop of a run puts its parts together, as far as records tell it. Finds nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import structs

from tuimon.diagnose.continuing import Continuation
from tuimon.diagnose.feeding import Feed
from tuimon.diagnose.gradients import gradient_bits
from tuimon.diagnose.incidents import PRIMARY
from tuimon.model.loop import (
    MAX_NORMS,
    LoopCalls,
    NormLayer,
    NormLayers,
    RankState,
    Reach,
    Warned,
)
from tuimon.model.records import (
    NO_GRAD,
    NON_FINITE,
    NORM_OVERFLOW,
    AnyRecord,
    Batch,
    LayerTable,
    Step,
)
from tuimon.model.samples import ParameterSamples

MAX_REACHES = 8


class LoopFigures:
    """Bounded facts about the wiring of one training.

    Attributes:
        calls: the newest counts.
        reaches: what the loss reached at some updates, in order.
        norms: layers with running statistics, by name, as they were told last.
        ranks: what processes of a distributed training were found to differ in.
        warned: what PyTorch warned about -> its words.
        starving: elements of trained parameters that have never had a gradient, beside all.
        starving_names: some of them.
        looked: updates that `starving` rests on.
        passes: passes over the data, by the DataLoader, the one under way included.
        moving: parameters whose values change although they have no gradient.
        bad_buffers: buffers that held NaN -> the first step that was seen to.
        overflows, spreads: steps whose clipping divided by a norm that is not finite, with finite
            gradients and with some that are not.
        feed: ranges of batches and targets.
        continuation: state that was loaded, and what the loss did then.
    """

    def __init__(self) -> None:
        self.calls: LoopCalls | None = None
        self.reaches: list[Reach] = []
        self.norms: dict[str, NormLayer] = {}
        self.ranks: list[RankState] = []
        self.warned: dict[str, str] = {}
        self.looked = self.passes = 0
        self.moving: set[str] = set()
        self.bad_buffers: dict[str, int] = {}
        self.overflows: list[int] = []
        self.spreads: list[int] = []
        self.feed = Feed()
        self.continuation = Continuation()
        self._table: LayerTable | None = None
        self._trained: npt.NDArray[np.bool_] | None = None
        self._sizes: npt.NDArray[np.float64] | None = None
        self._never: npt.NDArray[np.bool_] | None = None
        self._absmax: dict[str, float] = {}

    def see(self, record: AnyRecord) -> None:
        """Take one record in."""
        match record:
            case Step():
                self.continuation.see(record)
                if record.optimizer == PRIMARY:
                    self._note_step(record)
            case LayerTable():
                self._renew(record)
            case LoopCalls():
                self.calls = record
            case Reach() if len(self.reaches) < MAX_REACHES:
                self.reaches.append(record)
            case NormLayers():
                self._note_norms(record)
            case Warned():
                self.warned.setdefault(record.about, record.text)
            case RankState() if record.differing or record.same_batch:
                self.ranks = [*self.ranks[-15:], record]
            case ParameterSamples():
                self._note_samples(record)
            case Batch():
                self.feed.see(record)
            case _:
                self.continuation.see(record)

    @property
    def starving(self) -> float:
        """Share of the trained elements that have never had a gradient."""
        if self._never is None or self._trained is None or self._sizes is None or not self.looked:
            return 0.0
        whole = float(self._sizes[self._trained].sum())
        return float(self._sizes[self._trained & self._never].sum()) / whole if whole else 0.0

    def starving_names(self) -> Iterator[str]:
        """The parameters that `starving` speaks of."""
        if self._never is not None and self._trained is not None and self._table is not None:
            for index in np.flatnonzero(self._trained & self._never):
                yield self._table.names[index]

    def _note_step(self, record: Step) -> None:
        for each in record.bad:
            if each.what == "buffer" and each.nan and len(self.bad_buffers) < MAX_NORMS:
                self.bad_buffers.setdefault(each.name, record.step)
        if record.data_epoch is not None:
            self.passes = max(self.passes, record.data_epoch + 1)
        if record.backward_calls and not record.skipped:
            self._note_missing(record)
        if record.max_norm is None or not math.isfinite(record.max_norm):
            return
        bits = gradient_bits(record) or 0
        if bits & NON_FINITE and not record.skipped and len(self.spreads) < 16:
            self.spreads.append(record.step)
        elif (bits & NORM_OVERFLOW or _is_wiped(record)) and len(self.overflows) < 1024:
            self.overflows.append(record.step)

    def _note_norms(self, record: NormLayers) -> None:
        for each in record.items:
            known = self.norms.get(each.name)
            if record.at_end and known is not None:
                each = structs.replace(each, training=known.training)
            if known is not None or len(self.norms) < MAX_NORMS:
                self.norms[each.name] = each

    def _note_missing(self, record: Step) -> None:
        trained = self._trained
        if trained is None or not record.norms:
            return
        self.looked += 1
        if not record.flags:
            self._never = np.zeros(len(trained), bool)
            return
        flags = np.frombuffer(record.flags, np.uint8)
        if len(flags) == len(trained):
            missing = (flags & NO_GRAD) > 0
            self._never = missing if self._never is None else self._never & missing

    def _renew(self, table: LayerTable) -> None:
        count = len(table.names)
        if not count == len(table.requires_grad) == len(table.optimizer_index) == len(table.shapes):
            self._table = self._trained = self._never = None
            return
        trained = np.array(table.requires_grad, bool) & (
            np.array(table.optimizer_index, int) == PRIMARY
        )
        if self._trained is None or not np.array_equal(trained, self._trained):
            self._never, self.looked = None, 0
        self._table, self._trained = table, trained
        self._sizes = np.array([float(np.prod(shape)) for shape in table.shapes])

    def _note_samples(self, record: ParameterSamples) -> None:
        for item in record.items:
            if item.grad_absmax is not None or item.weight_absmax is None:
                continue
            before = self._absmax.setdefault(item.name, item.weight_absmax)
            if before != item.weight_absmax and len(self.moving) < 64:
                self.moving.add(item.name)


def _is_wiped(record: Step) -> bool:
    """Whether a clipping has left nothing of gradients: it divided them by infinity.

    Norms are added up in double precision here and in single precision there.
    """
    return bool(record.max_norm) and record.grad_norm_clipped == 0 and bool(record.grad_norm)
