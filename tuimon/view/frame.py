"""The frozen picture of one tick that panels draw, and the protocols it is made of.

`Frame` is built once per tick by `store.RunState.frame()` and never changes afterwards, except
that `SeriesView` and `HeatView` are append-only and carry a `version` that grows with their
content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from tuimon.feed.milestones import Milestone
from tuimon.feed.past import Past
from tuimon.model.amp import AmpCalls, AmpSkip, Headroom
from tuimon.model.autopsy import Autopsy
from tuimon.model.breakpoints import Breakpoint
from tuimon.model.crash import Crash
from tuimon.model.findings import FindingRecord
from tuimon.model.inspection import InspectReply
from tuimon.model.ranks import RankRows
from tuimon.model.records import (
    Batch,
    CommandState,
    Event,
    Facts,
    LayerTable,
    Memory,
    Output,
    System,
)
from tuimon.model.samples import Activation, Governor, Histogram, ParameterSample
from tuimon.model.snapshots import SnapshotState
from tuimon.model.trials import TrialRecord

if TYPE_CHECKING:  # what lists runs knows frames, and needs no arrays
    import numpy as np
    import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float32]"
Codes: TypeAlias = "npt.NDArray[np.uint8]"

# Bits of `Envelope.flags`: what lies in a column. No bit set means no data.
HAS_NAN = 1
HAS_POS_INF = 2
HAS_NEG_INF = 4
HAS_FINITE = 8

# Codes of a heat-map cell. Levels 1…8 are relative: 1/8x, 1/4x, 1/2x, 1x (as usual), 2x, 4x, 8x,
# 16x.
NO_DATA = 0
LEVEL_FIRST = 1
LEVEL_USUAL = 4
LEVEL_LAST = 8
ALL_ZERO = 9
CELL_NEG_INF = 10
CELL_POS_INF = 11
CELL_NAN = 12

# Why a view shows what it shows.
WAITING = "waiting"  # no run yet; attaches by itself
LOADING = "loading"
LIVE = "live"
LATE = "late"  # a step is overdue, but not yet alarming
SILENT = "silent"  # alive, no step for a while
PAUSED = "paused"
HELD = "held"
GONE = "gone"  # the training ended; `Frame.exit` says how
RECONNECTING = "reconnecting"
CUT_OFF = "cut off"  # alive and seen, but nothing that is sent gets there any more
UNWATCHED = "unwatched"  # the training goes on; tuimon has switched itself off in it
OTHER_VERSION = "other version"

END = -1  # a step of a recording to go to: its last


@dataclass(frozen=True)
class Envelope:
    """A window of a series reduced to columns.

    Attributes:
        low, high, mean: float32[columns], NaN where the column holds no finite value.
        flags: uint8[columns], the `HAS_*` bits of all samples in the column.
    """

    low: Floats
    high: Floats
    mean: Floats
    flags: Codes


class SeriesView(Protocol):
    """An append-only series of (step, value)."""

    name: str

    @property
    def version(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def first_step(self) -> int | None: ...
    @property
    def last_step(self) -> int | None: ...
    @property
    def last(self) -> float | None: ...  # newest value, may be non-finite
    @property
    def ema(self) -> float | None: ...  # of finite values, factor 0.98
    @property
    def minimum(self) -> float | None: ...  # of finite values
    @property
    def maximum(self) -> float | None: ...
    def envelope(self, first_step: int, end_step: int, columns: int) -> Envelope: ...
    def non_finite_near(self, step: int, *, forward: bool) -> int | None:
        """The nearest step strictly after (or before) `step` at which NaN or Inf begin."""
        ...


class HeatView(Protocol):
    """The layer × step history of gradient norms relative to each layer's own running median."""

    @property
    def version(self) -> int: ...
    @property
    def first_step(self) -> int | None: ...
    @property
    def last_step(self) -> int | None: ...
    def cells(
        self,
        groups: Sequence[Sequence[int]],
        first_step: int,
        end_step: int,
        columns: int,
        *,
        absolute: bool = False,
    ) -> Codes:
        """uint8[len(groups), columns]; each group of layer indices shows its worst member."""
        ...

    def ever_bad(self) -> npt.NDArray[np.bool_]:
        """bool[layers]: the layer had a NaN or Inf at any step."""
        ...

    def first_bad(self) -> npt.NDArray[np.int64]:
        """int64[layers]: first step with a NaN or Inf; -1 where there was none."""
        ...

    def latest_away(self) -> Floats:
        """float32[layers]: octaves between the newest norm and the layer's median, or NaN."""
        ...

    def norms(
        self, group: Sequence[int], first_step: int, end_step: int, columns: int
    ) -> tuple[Floats, Codes]:
        """Largest norm of a group in each column, roughly, and the `HAS_*` bits of all of it."""
        ...

    def span_at(self, step: int) -> tuple[int, int]:
        """The steps, from and before, that `norms` of `step` alone are the largest of."""
        ...

    def latest_norm(self) -> Floats:
        """float32[layers], NaN where there is none."""
        ...

    def latest_flags(self) -> Codes:
        """uint8[layers], record flag bits of the newest step."""
        ...


class SampleView(Protocol):
    """The newest sample of every layer that has had one; each with the step it is from."""

    @property
    def version(self) -> int: ...
    @property
    def governor(self) -> Governor | None: ...
    def parameter(self, name: str) -> tuple[int, ParameterSample] | None: ...
    def activation(self, module: str) -> tuple[int, Activation] | None: ...
    def histogram(self, what: str, name: str) -> Histogram | None:
        """Of a "weight", "gradient" or "activation"."""
        ...


class Exit(msgspec.Struct, frozen=True):
    """How the training ended, as far as anybody could tell.

    Attributes:
        not_finite: "weights not finite since step 7"; "" where nothing is known to be so.
    """

    kind: str  # "ok" | "exception" | "killed" | "stopped"
    code: int | None
    detail: str
    not_finite: str = ""


class Amp(msgspec.Struct, frozen=True):
    """GradScaler's account; its scale over time is the series "loss_scale".

    Attributes:
        scale, scale_first: newest and first one; None when it is not known.
        verdict: "none" | "calibrating" | "healthy" | "collapsing", and `why` for the last.
        skips: updates left out, each with its first overflowing gradient, oldest first, bounded.
        calls: what was called in which order; None while nothing was counted.
        gradient, activation: the tightest sampled headroom below the largest half-precision
            number, of gradients with their scale and of half-precision outputs.
    """

    scale: float | None
    skipped: int
    attempted: int
    last_skipped_step: int | None
    scale_first: float | None = None
    verdict: str = "none"
    why: str = ""
    skips: tuple[AmpSkip, ...] = ()
    calls: AmpCalls | None = None
    gradient: Headroom | None = None
    activation: Headroom | None = None


class Clip(msgspec.Struct, frozen=True):
    """Who clips and at which bound, as the newest step saw it."""

    mode: str = "user"
    max_norm: float | None = None


class Replay(msgspec.Struct, frozen=True):
    """Where a recording stands that is shown in place of a run.

    Attributes:
        playing: whether time goes on.
        speed: recorded seconds a second.
        first_step, last_step: of the recording, as far as it is known.
        time_s: unix time of the picture.
        follows: whether the run goes on, and what comes is shown as it is recorded.
    """

    playing: bool
    speed: float
    first_step: int | None = None
    last_step: int | None = None
    time_s: float | None = None
    follows: bool = False

    @property
    def speed_words(self) -> str:
        """ "4×", or "1/4×"."""
        return f"{self.speed:g}×" if self.speed >= 1 else f"1/{1 / self.speed:g}×"


class Timing(msgspec.Struct, frozen=True):
    """Mean seconds of the parts of a step over the last seconds; None when unknown."""

    step_s: float | None = None
    data_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    cost_frac: float | None = None  # tuimon's own share of the step


class DataPlace(msgspec.Struct, frozen=True):
    """Where the training stands in its data, by the DataLoader; epoch and batch count from 0.

    The epoch is None where nobody can know: other data in a new DataLoader for every pass.
    """

    epoch: int | None
    batch: int
    batches_per_epoch: int | None = None
    eta_s: float | None = None  # to the end of the epoch, evaluations not counted


# Reasons in `Frame.lost` that are no loss: old detail gives way, so that all of it is bounded.
THINNED = frozenset({"thinned out of the recording", "older events", "older output"})


@dataclass(frozen=True)
class Frame:
    """Everything one tick draws."""

    state: str = WAITING
    state_detail: str = ""  # one sentence: what it means and what to do next
    run_id: str = ""
    name: str = ""
    host: str = ""
    pid: int = 0
    rank: int = 0
    world_size: int = 1
    step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    eta_s: float | None = None
    silent_for_s: float | None = None
    hold_left_s: float | None = None  # until a hold ends by itself; None when it is not known
    series: dict[str, SeriesView] = field(default_factory=dict)
    heat: HeatView | None = None
    layers: LayerTable | None = None
    system: System | None = None
    memory: dict[str, Memory] = field(default_factory=dict)  # by device
    amp: Amp | None = None  # None when the run uses no GradScaler
    clip: Clip = field(default_factory=Clip)
    lrs: tuple[float | None, ...] = ()
    timing: Timing = field(default_factory=Timing)
    events: tuple[Event, ...] = ()  # oldest first, bounded
    commands: tuple[CommandState, ...] = ()  # newest state of each command, oldest first, bounded
    alert: Event | None = None  # headline of the newest incident
    exit: Exit | None = None
    lost: dict[str, int] = field(default_factory=dict)  # records, by reason; see `THINNED`
    history_first_step: int | None = None
    facts: Facts | None = None
    data: DataPlace | None = None  # None when no DataLoader feeds the training
    batch: Batch | None = None  # the newest one that was looked at
    samples: SampleView | None = None
    crash: Crash | None = None  # the exception that ended the training, with its scene
    autopsies: tuple[Autopsy, ...] = ()  # oldest first, bounded
    findings: tuple[FindingRecord, ...] = ()  # newest of each id, bounded
    trials: tuple[TrialRecord, ...] = ()  # what was tested, oldest first, bounded
    output: tuple[Output, ...] = ()  # what the training wrote, oldest first, bounded
    breakpoints: tuple[Breakpoint, ...] = ()  # what is set, by number
    ranks: RankRows | None = None  # None where the run is one process
    inspections: tuple[InspectReply, ...] = ()  # looks at layers, oldest first, bounded
    past: Past | None = None  # append-only, with a version
    milestones: tuple[Milestone, ...] = ()  # epochs and jumps of learning rates, by step
    snapshots: SnapshotState | None = None  # None where none are taken
    waits_for_s: float | None = None  # for how long it has been paused or held
    replay: Replay | None = None  # None for a run that is live
