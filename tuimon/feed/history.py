"""The thinned history of a whole run as one file: its shape, and how it is written and read.

The scribe is the only writer; a viewer that comes late reads it once and continues in the ring
after `up_to_sequence`. Folding records into it is `feed.thinning`.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from pathlib import Path

import msgspec

from tuimon.feed import private
from tuimon.model.amp import AmpCalls, AmpSkip, AmpVerdict
from tuimon.model.autopsy import Autopsy
from tuimon.model.breakpoints import Breakpoints
from tuimon.model.crash import Crash
from tuimon.model.findings import FindingRecord
from tuimon.model.inspection import InspectReply
from tuimon.model.ranks import RankRows
from tuimon.model.records import (
    NAN,
    NEG_INF,
    POS_INF,
    Batch,
    CommandState,
    Event,
    Facts,
    Goodbye,
    Hello,
    LayerTable,
    Memory,
    Step,
    Symptom,
    System,
)
from tuimon.model.samples import Activations, Governor, Histogram, ParameterSamples
from tuimon.model.snapshots import SnapshotState
from tuimon.model.trials import TrialRecord

HISTORY_VERSION = 1

# Bits of `SeriesHistory.flags`: what lies in a bucket. No bit set means no sample.
HAS_NAN = NAN
HAS_POS_INF = POS_INF
HAS_NEG_INF = NEG_INF
HAS_FINITE = 8

_HEADER = struct.Struct("<8sIIQ")  # magic, version, CRC-32 of the payload, payload bytes
_MAGIC = b"TUIMONHI"
_MAX_FILE_BYTES = 1 << 28  # far above what the bounds of `feed.thinning` allow


class SeriesHistory(msgspec.Struct, frozen=True, array_like=True):
    """One scalar series, reduced to buckets of equal width.

    Bucket `i` covers the steps `first_step + i * width` up to, not including, `first_step +
    (i + 1) * width`. Arrays are raw little-endian, one element per bucket.

    Attributes:
        first_step: first step of bucket 0.
        width: steps per bucket, a power of two.
        low, high, mean: float64, over the finite samples; NaN where a bucket has none.
        last: float64, the newest sample of the bucket, finite or not; NaN where it has none.
        flags: uint8, the `HAS_*` bits of all samples; 0 where the bucket has no sample.
        count: uint32, number of finite samples.
        newest_step: step of the newest sample.
    """

    first_step: int
    width: int
    low: bytes
    high: bytes
    mean: bytes
    last: bytes
    flags: bytes
    count: bytes
    newest_step: int | None = None


class HeatHistory(msgspec.Struct, frozen=True, array_like=True):
    """Gradient norms of every parameter of one layer-table epoch, reduced to buckets.

    Buckets lie as in `SeriesHistory`. Arrays are row-major [buckets, layers].

    Attributes:
        epoch: epoch of the `LayerTable` in `History.tables` that names the layers.
        layers: number of parameters.
        norms: float32, the largest finite norm of the bucket; NaN where there is none.
        flags: uint8, the record flag bits of all steps of the bucket, or-ed.
    """

    epoch: int
    layers: int
    first_step: int
    width: int
    norms: bytes
    flags: bytes


class AmpHistory(msgspec.Struct, frozen=True, array_like=True):
    """What the GradScaler did: steps with a loss scale, and those it left out."""

    attempted: int = 0
    skipped: int = 0
    scale_first: float | None = None
    scale_last: float | None = None
    last_skipped_step: int | None = None


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """Counts over the whole run.

    Attributes:
        records: records folded.
        steps: Step records of the primary optimizer.
        first_step, last_step: of the primary optimizer, as far as they were seen.
        cost_s, step_s: sums over the steps that know both.
        lost: records that did not arrive, by reason.
        events_dropped: older events that no longer fit in `History.events`.
    """

    records: int = 0
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    cost_s: float = 0.0
    step_s: float = 0.0
    lost: dict[str, int] = {}
    events_dropped: int = 0


class History(msgspec.Struct, frozen=True, array_like=True):
    """Everything a late viewer needs to see the run from its first step.

    Attributes:
        run_id: the run it belongs to.
        up_to_sequence: newest record of the trainer's ring that is contained.
        scribe_sequence: newest record of the scribe's ring that is contained.
        written_at_s: unix time.
        series: by name: "loss", "grad_norm", "grad_norm_clipped", "lr" (param_group 0; "lr/1" …
            for the others), "loss_scale", "step_s", and every key of `mon.log` (as "log/…" where
            it is one of these names). Series of another optimizer than the primary carry its
            index: "loss@1", and count its own steps.
            "skipped" holds 1.0 at each step that left its update out, and nothing elsewhere.
        heats: one per layer-table epoch of the primary optimizer, oldest first; the oldest fall
            out first.
        tables: the layer tables of `heats` and the newest one, by epoch.
        hello, facts, goodbye, last_step, system: the newest record of that type.
        memory: newest reading by device.
        events, symptoms: oldest first, bounded.
        commands: newest state of each command, oldest command first, bounded.
        governor: newest account of the sampling.
        samples: the newest sample of every layer, oldest first, bounded.
        autopsies: oldest first, bounded.
        findings: the newest of each id, bounded.
        trials: oldest first, bounded.
        crash, amp_calls, amp_verdict, breakpoints, ranks, snapshots: the newest record of that
            type.
        inspections: the newest answers, oldest first, bounded.
        amp_skips: updates the GradScaler left out, oldest first, bounded.
        batches: the first ones and the newest that were looked at, oldest first, bounded.
        milestones: (step, kind, words) of epochs and of jumps of learning rates, bounded.
        readings: System records of the last minutes, oldest first, bounded.
        older_samples: what was sampled before, thinned by age, oldest first, bounded.
    """

    run_id: str
    up_to_sequence: int
    scribe_sequence: int = 0
    written_at_s: float = 0.0
    series: dict[str, SeriesHistory] = {}
    heats: list[HeatHistory] = []
    tables: dict[int, LayerTable] = {}
    hello: Hello | None = None
    facts: Facts | None = None
    goodbye: Goodbye | None = None
    last_step: Step | None = None
    system: System | None = None
    memory: dict[str, Memory] = {}
    events: list[Event] = []
    symptoms: list[Symptom] = []
    commands: list[CommandState] = []
    amp: AmpHistory = AmpHistory()
    totals: Totals = Totals()
    governor: Governor | None = None
    samples: list[ParameterSamples | Activations | Histogram] = []
    crash: Crash | None = None
    amp_skips: list[AmpSkip] = []
    amp_calls: AmpCalls | None = None
    amp_verdict: AmpVerdict | None = None
    autopsies: list[Autopsy] = []
    findings: list[FindingRecord] = []
    trials: list[TrialRecord] = []
    breakpoints: Breakpoints | None = None
    inspections: list[InspectReply] = []
    ranks: RankRows | None = None
    batches: list[Batch] = []
    readings: list[System] = []
    older_samples: list[ParameterSamples | Activations | Histogram] = []
    snapshots: SnapshotState | None = None
    milestones: list[tuple[int, str, str]] = []


_encoder = msgspec.msgpack.Encoder()


@cache
def decoder() -> msgspec.msgpack.Decoder[History]:
    """Of histories; making it takes long."""
    return msgspec.msgpack.Decoder(History)


def write_history(path: Path, history: History) -> int:
    """Replace the file in one step and return its size in bytes.

    Raises:
        OSError: no room or no right to write; the old file stays as it is.
    """
    payload = _encoder.encode(history)
    header = _HEADER.pack(_MAGIC, HISTORY_VERSION, zlib.crc32(payload), len(payload))
    private.replace(path, header + payload)
    return len(header) + len(payload)


def read_history(path: Path) -> History | None:
    """Read a history; None when there is none, it is damaged, or another version wrote it."""
    try:
        with private.open_reading(path) as file:
            return history_from(file.read(_HEADER.size + _MAX_FILE_BYTES))
    except OSError:
        return None


def history_from(data: bytes) -> History | None:
    """The history in the bytes of such a file; None where `read_history` says None."""
    if len(data) < _HEADER.size:
        return None
    magic, version, checksum, size = _HEADER.unpack_from(data)
    payload = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or version != HISTORY_VERSION or size != len(payload):
        return None
    if zlib.crc32(payload) != checksum:
        return None
    try:
        return decoder().decode(payload)
    except (msgspec.DecodeError, ValueError):
        return None
