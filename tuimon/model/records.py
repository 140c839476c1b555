"""The records that travel from a training to its readers, and nothing else.

A record is an array-like MessagePack struct with an integer tag. Fields are only ever appended,
each with a default, so that older and newer peers read each other. `None` means "not known";
it is never written as 0. Arrays are raw little-endian bytes: float32 for quantities, uint8 for
flags, one element per parameter in the order of the `LayerTable` of the same epoch.
"""

from __future__ import annotations

import msgspec

from tuimon.model.amp import AmpCalls, AmpSkip, AmpVerdict
from tuimon.model.autopsy import Autopsy
from tuimon.model.batches import LossFacts, LossSeen, TensorSummary
from tuimon.model.breakpoints import Breakpoints
from tuimon.model.crash import Crash
from tuimon.model.devices import DeviceReading as DeviceReading
from tuimon.model.findings import FindingRecord
from tuimon.model.graphs import GraphSeen
from tuimon.model.inspection import InspectReply
from tuimon.model.loop import LoopCalls, NormLayers, RankState, Reach, StateLoaded, Warned
from tuimon.model.ranks import RankRows
from tuimon.model.samples import Activations, Governor, Histogram, ParameterSamples, StartingWeights
from tuimon.model.snapshots import SnapshotState
from tuimon.model.trials import TrialRecord
from tuimon.model.wire import Record as Record

FORMAT_VERSION = 1

# Per-parameter flag bits in `Step.flags`. Several may be set at once.
NAN = 1
POS_INF = 2
NEG_INF = 4
NO_GRAD = 8  # the parameter has no gradient in this step: its norm is missing, not zero
NORM_OVERFLOW = 16  # every element is finite, but the norm is not representable
UNMEASURED = 32  # a gradient exists but its kind (meta, integer, unknown layout) was not measured
NON_FINITE = NAN | POS_INF | NEG_INF

# `Step.clip` and `SetClip.mode`.
CLIP_USER = "user"
CLIP_ON = "on"
CLIP_OFF = "off"

# The state word in the ring header, and `RunInfo.state`.
RUNNING = 0
PAUSED = 1
HELD = 2
ENDED = 3
UNWATCHED = 4  # the training goes on, and tuimon has switched itself off in it
STATE_NAMES = dict(enumerate(("running", "paused", "held", "gone", "unwatched")))
WATCH_OFF = "watch-off"  # kind of the event that tells of it; its detail is the cause


class Hello(Record, frozen=True, array_like=True, tag=1):
    """First record of a writer: who it is and what it can do."""

    format_version: int
    run_id: str
    name: str
    host: str
    pid: int
    rank: int = 0
    world_size: int = 1
    started_at_s: float = 0.0  # unix time
    argv: list[str] = []
    versions: dict[str, str] = {}
    capabilities: list[str] = []
    total_steps: int | None = None


class LayerTable(Record, frozen=True, array_like=True, tag=2):
    """The parameters that `Step.norms` speaks of; a new epoch replaces the table."""

    epoch: int
    names: list[str]
    shapes: list[list[int]] = []
    dtypes: list[str] = []
    requires_grad: list[bool] = []
    optimizer_index: list[int] = []  # which optimizer owns the parameter, -1 for none
    aliases: dict[str, str] = {}  # tied name -> name in `names`


class BadTensor(msgspec.Struct, frozen=True, array_like=True):
    """Exact element counts of one tensor that holds a non-finite value."""

    what: str  # "gradient" | "parameter" | "buffer" | "optimizer-state" | "loss"
    name: str
    nan: int
    posinf: int
    neginf: int
    numel: int


class Step(Record, frozen=True, array_like=True, tag=3):
    """One attempted update of one optimizer.

    Attributes:
        step: 0-based index of attempted updates of this optimizer.
        epoch: epoch of the `LayerTable` that `norms` and `flags` follow.
        optimizer: index of the optimizer; 0 is the primary one (the first that steps).
        loss: last loss that `backward` saw before this update; None when there was none.
        loss_sum: sum over the backward calls whose gradients add up in this update. It is the
            mean of the batches where the loop divides each by their number, as HF Trainer,
            Accelerate and Lightning do; calls before the gradients were cleared do not count.
        backward_calls: number of backward calls since the previous update.
        grad_norm: total L2 norm before clipping, of unscaled gradients.
        grad_norm_clipped: the norm the optimizer sees; equals `grad_norm` when nothing clipped.
        max_norm: the bound that was in force, whoever set it; None without clipping.
        clip: who decides about clipping: "user", "on" or "off".
        lrs: learning rate of each param_group as the update used it; None where unknown.
        skipped: the update did not happen (GradScaler overflow, or asked for).
        norms: float32 per parameter, L2 before clipping, unscaled; b"" when not measured.
        flags: uint8 per parameter (bits above); b"" means all zero.
        bad: exact counts for the first tensors that tripped, at most `MAX_BAD`.
        bad_total: how many tensors tripped.
        step_s, data_s, forward_s, backward_s, optimizer_s: host wall time; None when unknown.
        cost_s: host time tuimon itself spent in this step.
        late: statistics follow in a `DeviceStats` record with the same step.
        weights_checked: whether weights, buffers and optimizer state were looked at: "" no,
            "before" the update, "after" it, or "both"; what was found is in `bad`.
        bad_before: how many of those were already non-finite before the update; None when they
            were not looked at then.
        data_epoch, batch_index: which pass over the data, and which batch of it, both from 0, by
            the DataLoader that fed the newest training forward; None without one.
        left_out: why tuimon left the update out; "" when it did not, also where a GradScaler did.
    """

    step: int
    time_ns: int  # unix time
    epoch: int = 0
    optimizer: int = 0
    loss: float | None = None
    loss_sum: float | None = None
    backward_calls: int = 0
    grad_norm: float | None = None
    grad_norm_clipped: float | None = None
    max_norm: float | None = None
    clip: str = CLIP_USER
    lrs: list[float | None] = []
    loss_scale: float | None = None
    found_inf: bool | None = None
    skipped: bool = False
    norms: bytes = b""
    flags: bytes = b""
    bad: list[BadTensor] = []
    bad_total: int = 0
    step_s: float | None = None
    data_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    cost_s: float | None = None
    late: bool = False
    lr_override: bool = False
    weights_checked: str = ""
    bad_before: int | None = None
    data_epoch: int | None = None
    batch_index: int | None = None
    left_out: str = ""
    grad_share: float | None = None  # of the squared norm, where ranks hold parts of gradients


MAX_BAD = 32
HELD_UPDATE = "held"  # `Step.left_out` while nobody has decided


def loss_of(record: Step | DeviceStats) -> float | None:
    """The loss that an update follows: of all its backward calls, or of the last where unknown."""
    return record.loss if record.loss_sum is None else record.loss_sum


class DeviceStats(Record, frozen=True, array_like=True, tag=4):
    """The device part of a step, published when it has arrived without a synchronisation."""

    step: int
    optimizer: int = 0
    epoch: int = 0
    loss: float | None = None
    loss_sum: float | None = None
    grad_norm: float | None = None
    grad_norm_clipped: float | None = None
    loss_scale: float | None = None
    found_inf: bool | None = None
    norms: bytes = b""
    flags: bytes = b""


class Scalars(Record, frozen=True, array_like=True, tag=5):
    """What the user logged with `mon.log`; keys with slashes (`train/loss`)."""

    step: int
    values: dict[str, float]


class Facts(Record, frozen=True, array_like=True, tag=6):
    """What the live objects are, published once they are known and again when they change."""

    optimizers: list[str] = []  # class names
    param_groups: list[int] = []  # number of groups of each optimizer
    scaler: str | None = None
    modules: list[str] = []  # class names of the root modules
    loss_node: str | None = None  # name of loss.grad_fn
    devices: list[str] = []
    fused: list[bool] = []
    losses: list[LossFacts] = []  # the loss functions below `loss_node`, as far as they are seen
    batches_per_epoch: int | None = None  # by the DataLoader that feeds the training
    # Of the first group of each optimizer: momentum, beta1, beta2, eps, alpha, weight_decay,
    # dampening; initial_lr and max_lr where a scheduler of torch has left them.
    settings: list[dict[str, float]] = []


class Event(Record, frozen=True, array_like=True, tag=7):
    """Something worth a line in the event log.

    Attributes:
        until_s: unix time at which it ends by itself, for a hold; None for what does not last.
        first_step: the first of the steps before `step` that it has undone, for a roll back.
    """

    step: int | None
    time_s: float  # unix time
    severity: str  # "info" | "warning" | "critical"
    kind: str  # short slug: "pause", "resume", "amp-skip", "dump", "tap-disarmed", …
    text: str
    detail: str = ""
    until_s: float | None = None
    first_step: int | None = None


class Symptom(Record, frozen=True, array_like=True, tag=8):
    """An observation by a detector; `kind` is a slug of `causes.SYMPTOMS`.

    `figures` are the numbers of `detail` by name, for rules: never parsed from the sentence.
    """

    kind: str
    step: int | None
    rank: int
    severity: str
    detail: str
    figures: dict[str, float] = {}


class CommandState(Record, frozen=True, array_like=True, tag=9):
    """One stage in the life of a command."""

    id: str
    command: str  # class name, e.g. "SetClip"
    state: str  # "accepted" | "refused" | "applied" | "expired"
    by: str = ""
    asked_at_s: float = 0.0  # unix time
    step: int | None = None
    old: str | None = None
    new: str | None = None
    reason: str = ""
    words: str = ""  # the command as a person says it: "clip on 1.0"
    asked: bytes = b""  # the typed command itself, by `model.ledger.asked_of`; b"" where too long


class System(Record, frozen=True, array_like=True, tag=10):
    """Readings by the scribe, about once a second."""

    time_s: float  # unix time
    devices: list[DeviceReading] = []
    device_note: str = ""  # why there is no reading, for a person: "no NVIDIA driver"
    host_cpu_frac: float | None = None  # of all cores
    host_memory_used_bytes: int | None = None
    host_memory_total_bytes: int | None = None
    trainer_cpu_frac: float | None = None  # 1.0 is one core
    trainer_rss_bytes: int | None = None
    scribe_cpu_frac: float | None = None
    scribe_rss_bytes: int | None = None


class Memory(Record, frozen=True, array_like=True, tag=11):
    """The allocator's own account of one device, from the trainer, at most once a second."""

    time_s: float  # unix time
    device: str
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None


class Output(Record, frozen=True, array_like=True, tag=12):
    """A line the training wrote while started with `--attach`."""

    time_s: float  # unix time
    stream: str  # "stdout" | "stderr"
    text: str


class Goodbye(Record, frozen=True, array_like=True, tag=13):
    """Last record of a trainer that could say why it ends."""

    kind: str  # "ok" | "exception" | "stopped"
    code: int | None = None
    detail: str = ""
    step: int | None = None
    time_s: float = 0.0


class Loss(Record, frozen=True, array_like=True, tag=14):
    """A loss worth reporting before its update is attempted: it is not finite.

    Written at `backward`, so that a script that dies between backward and step is not silent.
    """

    step: int
    value: float
    time_ns: int = 0
    site: str = ""  # file:line of the backward call


class Pending(Record, frozen=True, array_like=True, tag=16):
    """An update that is held, as it would be recorded if it were made: what is decided about."""

    step: Step


class RingLost(Record, frozen=True, array_like=True, tag=15):
    """Records the writer could not publish, with the reason."""

    count: int
    reason: str


class Batch(Record, frozen=True, array_like=True, tag=20):
    """The batch of one training forward: the first ones, samples later, and suspicious ones.

    Attributes:
        step: index of the update that it leads to.
        why: "first" | "sample" | "suspicion" | "jump" (of a finite loss).
        inputs: what the root module was called with; at most `MAX_INPUTS`.
        losses: what the loss functions were given; empty when no loss node was seen.
        left_out: tensors, or places in a nested structure, that were not looked at.
        graph: what the graph of the loss is like; looked at once.
    """

    step: int
    time_ns: int  # unix time
    why: str = "sample"
    inputs: list[TensorSummary] = []
    losses: list[LossSeen] = []
    data_epoch: int | None = None
    batch_index: int | None = None
    batches_per_epoch: int | None = None
    left_out: int = 0
    graph: GraphSeen | None = None


MAX_INPUTS = 16

AnyRecord = (
    Hello
    | LayerTable
    | Step
    | DeviceStats
    | Scalars
    | Facts
    | Event
    | Symptom
    | CommandState
    | System
    | Memory
    | Output
    | Goodbye
    | Loss
    | RingLost
    | Pending
    | Governor
    | ParameterSamples
    | StartingWeights
    | Activations
    | Histogram
    | Batch
    | Autopsy
    | Crash
    | AmpSkip
    | AmpCalls
    | AmpVerdict
    | LoopCalls
    | Reach
    | NormLayers
    | StateLoaded
    | Warned
    | RankState
    | RankRows
    | FindingRecord
    | TrialRecord
    | Breakpoints
    | InspectReply
    | SnapshotState
)
