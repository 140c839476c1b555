"""The run so far in bounded memory, for whoever writes its history: records in, `History` out."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from tuimon.feed.amp import AmpFold
from tuimon.feed.history import HeatHistory, History, SeriesHistory, Totals
from tuimon.feed.milestones import Milestones
from tuimon.feed.past import Past, ends_of
from tuimon.feed.samples import Samples
from tuimon.feed.thinning import HeatFold, SeriesFold
from tuimon.model.amp import AmpCalls, AmpSkip, AmpVerdict
from tuimon.model.autopsy import Autopsy
from tuimon.model.breakpoints import Breakpoints
from tuimon.model.crash import Crash
from tuimon.model.findings import MAX_FINDINGS, WITHDRAWN, FindingRecord
from tuimon.model.inspection import MAX_INSPECTIONS, InspectReply
from tuimon.model.ranks import RankRows
from tuimon.model.records import (
    AnyRecord,
    Batch,
    CommandState,
    DeviceStats,
    Event,
    Facts,
    Goodbye,
    Hello,
    LayerTable,
    Loss,
    Memory,
    RingLost,
    Scalars,
    Step,
    Symptom,
    System,
    loss_of,
)
from tuimon.model.samples import Activations, Governor, Histogram, ParameterSamples
from tuimon.model.snapshots import SnapshotState
from tuimon.model.trials import MAX_TRIALS, TrialRecord

MAX_EVENTS = 2000  # about 300 KB; the event log of the screen holds no more
MAX_SYMPTOMS = 500
MAX_COMMANDS = 500
MAX_AUTOPSIES = 16  # a training publishes three
MAX_SERIES = 96  # 16 MB if every one of them is full
MAX_LR_GROUPS = 8  # charts tell no more than eight lines apart
MAX_HEAT_EPOCHS = 8
MAX_HEAT_BYTES = 8 << 20  # over all epochs; the newest always stays
MAX_LATE_BATCHES = 48  # some 2 KB each
MAX_LATE_READINGS = 240
LATE_SHARE = 0.1  # of a viewer's samples: a few hundred KB, written again and again
PRIMARY = 0
LEFT = "grad_norm_clipped"  # the norm that clipping left
_ROUNDING = 1e-6  # between a norm and the root of its parts, where nothing was clipped
MEASURED = frozenset(("loss", "grad_norm", LEFT, "loss_scale", "step_s", "skipped"))


def logged_name(key: str) -> str:
    """The series of a key of `mon.log`: the key itself, or "log/…" where we measure that name."""
    taken = key in MEASURED or key == "lr" or key.startswith(("lr/", "memory/"))
    return f"log/{key}" if taken else key


def norm_left(record: Step | DeviceStats, *, ever: bool) -> float | None:
    """What clipping left of the norm; None where none was clipped so far: it repeats the norm.

    Args:
        ever: whether an earlier record was clipped.
    """
    norm, left = record.grad_norm, record.grad_norm_clipped
    if ever or norm is None or left is None:
        return left
    is_same = (
        norm == left or abs(norm - left) <= _ROUNDING * norm or (norm != norm and left != left)
    )
    return None if is_same else left


def memory_name(device: str) -> str:
    """The series of what a device's allocator, or the "process", has taken, in GiB."""
    return f"memory/{device}"


class Chronicle:
    """Folds every record of a run into what a late viewer needs. Not shared between threads."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._series: dict[str, SeriesFold] = {}
        self._heats: dict[int, HeatFold] = {}
        self._tables: dict[int, LayerTable] = {}
        self.hello: Hello | None = None
        self.goodbye: Goodbye | None = None
        self._facts: Facts | None = None
        self._system: System | None = None
        self._memory: dict[str, Memory] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._symptoms: list[Symptom] = []
        self._commands: dict[str, CommandState] = {}
        self._samples = Samples()
        self._past = Past(share=LATE_SHARE)
        self._milestones = Milestones()
        self._lost: dict[str, int] = {}
        self._records = 0
        self._steps = 0
        self._first_step: int | None = None
        self._last_step: Step | None = None
        self._cost_s = 0.0
        self._step_s = 0.0
        self._events_dropped = 0
        self._amp = AmpFold()
        self._crash: Crash | None = None
        self._autopsies: list[Autopsy] = []
        self._findings: dict[str, FindingRecord] = {}
        self._trials: list[TrialRecord] = []
        self._breakpoints: Breakpoints | None = None
        self.snapshots: SnapshotState | None = None
        self._ranks: RankRows | None = None
        self._inspections: deque[InspectReply] = deque(maxlen=MAX_INSPECTIONS)

    @property
    def last_step(self) -> int | None:
        """Newest step of the primary optimizer."""
        return self._last_step.step if self._last_step else None

    @property
    def commands(self) -> list[CommandState]:
        """Newest state of each command, oldest command first."""
        return list(self._commands.values())

    @property
    def overhead_frac(self) -> float | None:
        """Tuimon's own share of the step time, over the steps that know both."""
        return self._cost_s / self._step_s if self._step_s > 0 else None

    @property
    def records(self) -> int:
        return self._records

    def add(self, record: AnyRecord) -> None:
        """Fold one record in."""
        self._records += 1
        match record:
            case Step():
                self._add_step(record)
            case DeviceStats():
                self._add_device_stats(record)
            case Loss():
                self._sample("loss", record.step, record.value)
            case Scalars():
                for key, value in record.values.items():
                    self._sample(logged_name(key), record.step, value)
            case LayerTable():
                self._add_table(record)
            case Event():
                self._events_dropped += len(self._events) == MAX_EVENTS
                self._events.append(record)
            case Symptom():
                if len(self._symptoms) < MAX_SYMPTOMS:
                    self._symptoms.append(record)
            case CommandState():
                self._add_command(record)
            case Memory():
                if record.device in self._memory or len(self._memory) < MAX_SERIES:
                    self._memory[record.device] = record
                self._sample_bytes(record.device, record.allocated_bytes)
            case RingLost():
                self._lost[record.reason] = self._lost.get(record.reason, 0) + record.count
            case Hello():
                self.hello = record
            case Facts():
                self._facts = record
            case System():
                self._system = record
                self._past.see(record)
                self._sample_bytes("process", record.trainer_rss_bytes)
            case Batch():
                self._past.see(record)
            case Governor() | ParameterSamples() | Activations() | Histogram():
                self._samples.add(record)
                self._past.see(record)
            case Goodbye():
                self.goodbye = record
            case Crash():
                self._crash = record
            case Autopsy():
                if len(self._autopsies) < MAX_AUTOPSIES:
                    self._autopsies.append(record)
            case FindingRecord():
                if record.status == WITHDRAWN:
                    self._findings.pop(record.id, None)
                elif record.id in self._findings or len(self._findings) < MAX_FINDINGS:
                    self._findings[record.id] = record
            case TrialRecord():
                if len(self._trials) < MAX_TRIALS:
                    self._trials.append(record)
            case Breakpoints():
                self._breakpoints = record
            case SnapshotState():
                self.snapshots = record
            case RankRows():
                self._ranks = record
            case InspectReply():
                self._inspections.append(record)
            case AmpSkip() | AmpCalls() | AmpVerdict():
                self._amp.add(record)
            case _:
                pass

    def snapshot(
        self,
        *,
        up_to_sequence: int,
        scribe_sequence: int,
        written_at_s: float,
        lost: dict[str, int] | None = None,
    ) -> History:
        """The run as it is now; `lost` counts what the reader of the ring itself missed."""
        return History(
            run_id=self._run_id,
            up_to_sequence=up_to_sequence,
            scribe_sequence=scribe_sequence,
            written_at_s=written_at_s,
            series=self._series_snapshots(),
            heats=self._heat_snapshots(),
            tables=dict(self._tables),
            hello=self.hello,
            facts=self._facts,
            goodbye=self.goodbye,
            last_step=self._last_step,
            system=self._system,
            memory=dict(self._memory),
            events=list(self._events),
            symptoms=list(self._symptoms),
            commands=self.commands,
            amp=self._amp.counts(),
            totals=self._totals(lost or {}),
            governor=self._samples.governor,
            samples=self._samples.records(),
            crash=self._crash,
            autopsies=list(self._autopsies),
            findings=list(self._findings.values()),
            trials=list(self._trials),
            amp_skips=list(self._amp.skips),
            amp_calls=self._amp.calls,
            amp_verdict=self._amp.verdict,
            breakpoints=self._breakpoints,
            ranks=self._ranks,
            inspections=list(self._inspections),
            batches=ends_of(self._past.batches, MAX_LATE_BATCHES),
            snapshots=self.snapshots,
            milestones=list(self._milestones.all),
            readings=ends_of(self._past.readings, MAX_LATE_READINGS, first=0),
            older_samples=self._past.samples(),
        )

    def lost(self, more: dict[str, int]) -> dict[str, int]:
        """Everything that did not arrive, by reason: told by the writers, and `more`."""
        total = dict(self._lost)
        for reason, count in more.items():
            if count:
                total[reason] = total.get(reason, 0) + count
        return total

    def _add_step(self, record: Step) -> None:
        suffix = _suffix(record.optimizer)
        for name, value in (
            ("loss", loss_of(record)),
            ("grad_norm", record.grad_norm),
            (LEFT, norm_left(record, ever=LEFT + suffix in self._series)),
            ("loss_scale", record.loss_scale),
            ("step_s", record.step_s),
            ("skipped", 1.0 if record.skipped else None),
        ):
            if value is not None:
                self._sample(name + suffix, record.step, value)
        for group, lr in enumerate(record.lrs[:MAX_LR_GROUPS]):
            if lr is not None:
                name = "lr" if group == 0 else f"lr/{group}"
                self._sample(name + suffix, record.step, lr)
        if record.cost_s is not None and record.step_s is not None:
            self._cost_s += record.cost_s
            self._step_s += record.step_s
        if record.optimizer == PRIMARY:
            self._amp.count(record)
            self._steps += 1
            if self._first_step is None:
                self._first_step = record.step
            self._last_step = record
            self._milestones.see(record)
        self._add_heat(record)

    def _add_device_stats(self, record: DeviceStats) -> None:
        suffix = _suffix(record.optimizer)
        for name, value in (
            ("loss", loss_of(record)),
            ("grad_norm", record.grad_norm),
            (LEFT, norm_left(record, ever=LEFT + suffix in self._series)),
            ("loss_scale", record.loss_scale),
        ):
            if value is not None:
                self._sample(name + suffix, record.step, value)
        if record.optimizer == PRIMARY:
            self._amp.count(record)
        self._add_heat(record)

    def _sample(self, name: str, step: int, value: float) -> None:
        fold = self._series.get(name)
        if fold is None:
            if len(self._series) >= MAX_SERIES:
                self._lost["too many series"] = self._lost.get("too many series", 0) + 1
                return
            fold = self._series[name] = SeriesFold()
        fold.add(step, value)

    def _sample_bytes(self, device: str, size_bytes: int | None) -> None:
        if size_bytes is not None and self.last_step is not None:
            self._sample(memory_name(device), self.last_step, size_bytes / 2**30)

    def _add_heat(self, record: Step | DeviceStats) -> None:
        layers = len(record.norms) // 4 or len(record.flags)
        if layers == 0:
            return
        fold = self._heats.get(record.epoch)
        if fold is None:
            fold = self._heats[record.epoch] = HeatFold(record.epoch, layers)
        step = record.step if record.optimizer == PRIMARY else self.last_step
        mine = _layers_of(self._tables.get(record.epoch), record.optimizer)
        if not fold.add(step or 0, record.norms, record.flags, mine):
            self._lost["layer mismatch"] = self._lost.get("layer mismatch", 0) + 1
        self._bound_heats()

    def _bound_heats(self) -> None:
        while len(self._heats) > 1 and (
            len(self._heats) > MAX_HEAT_EPOCHS
            or sum(fold.size_bytes for fold in self._heats.values()) > MAX_HEAT_BYTES
        ):
            oldest = min(self._heats)
            del self._heats[oldest]
            self._tables.pop(oldest, None)

    def _add_table(self, record: LayerTable) -> None:
        self._tables[record.epoch] = record
        newest = max(self._tables)
        for epoch in [e for e in self._tables if e != newest and e not in self._heats]:
            del self._tables[epoch]

    def _add_command(self, record: CommandState) -> None:
        if record.id not in self._commands and len(self._commands) >= MAX_COMMANDS:
            del self._commands[next(iter(self._commands))]
        self._commands[record.id] = record

    def _series_snapshots(self) -> dict[str, SeriesHistory]:
        return {name: fold.snapshot() for name, fold in self._series.items()}

    def _heat_snapshots(self) -> list[HeatHistory]:
        return [self._heats[epoch].snapshot() for epoch in sorted(self._heats)]

    def _totals(self, lost: dict[str, int]) -> Totals:
        return Totals(
            records=self._records,
            steps=self._steps,
            first_step=self._first_step,
            last_step=self.last_step,
            cost_s=self._cost_s,
            step_s=self._step_s,
            lost=self.lost(lost),
            events_dropped=self._events_dropped,
        )


def _suffix(optimizer: int) -> str:
    return "" if optimizer == PRIMARY else f"@{optimizer}"


def _layers_of(table: LayerTable | None, optimizer: int) -> npt.NDArray[np.bool_] | None:
    """Which layers a record speaks of: with several optimizers only those of its own."""
    if table is None or len(set(table.optimizer_index) - {-1}) < 2:
        return None
    owners = np.array(table.optimizer_index)
    mine: npt.NDArray[np.bool_] = (owners == optimizer) | (owners < 0)
    return mine if len(mine) == len(table.names) else None
