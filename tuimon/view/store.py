"""Everything a viewer knows of one run: records go in, one frozen `Frame` a tick comes out.

Belongs to one thread. Owns no source and no clock, and decides nothing about silence: the
session tells how the run stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tuimon.feed.chronicle import (
    LEFT,
    MAX_LR_GROUPS,
    MAX_SERIES,
    MEASURED,
    logged_name,
    memory_name,
    norm_left,
)
from tuimon.feed.milestones import Milestones
from tuimon.feed.past import Past
from tuimon.feed.samples import Samples
from tuimon.model.amp import AmpCalls, AmpSkip, AmpVerdict
from tuimon.model.autopsy import Autopsy
from tuimon.model.breakpoints import Breakpoints
from tuimon.model.crash import Crash
from tuimon.model.findings import FindingRecord
from tuimon.model.inspection import InspectReply
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
    Output,
    Pending,
    RingLost,
    Scalars,
    Step,
    Symptom,
    System,
    loss_of,
)
from tuimon.model.samples import Activations, Governor, Histogram, ParameterSamples
from tuimon.model.snapshots import SnapshotState
from tuimon.model.text import plain
from tuimon.model.trials import TrialRecord
from tuimon.view.amp import AmpAccount
from tuimon.view.evidence_only import EVIDENCE_ONLY, pass_over, passed_to
from tuimon.view.finite import Finite
from tuimon.view.frame import LATE, LIVE, WAITING, Clip, DataPlace, Exit, Frame, SeriesView
from tuimon.view.layer_history import PRIMARY, LayerHistory
from tuimon.view.ledger import Ledger
from tuimon.view.log import Log
from tuimon.view.pace import Pace
from tuimon.view.reached import Reached
from tuimon.view.scenes import Scenes
from tuimon.view.series import Series

MAX_DEVICES = 64


class Standing(msgspec.Struct, frozen=True):
    """How a run stands, as the session sees it."""

    state: str = WAITING
    detail: str = ""
    silent_for_s: float | None = None
    exit: Exit | None = None
    lost: dict[str, int] = msgspec.field(default_factory=dict)


_COUNTED = (Step, DeviceStats, LayerTable, ParameterSamples, Activations)  # by the account of amp


class RunState:
    """What the records of a run add up to."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.ledger = Ledger()
        self.series: dict[str, Series] = {}
        self.layers = LayerHistory()
        self.log = Log()
        self.samples = Samples()
        self.past = Past()
        self.milestones = Milestones()
        self.finite = Finite()
        self.hello: Hello | None = None
        self.goodbye: Goodbye | None = None
        self.step: Step | None = None  # newest one of the primary optimizer
        self.lost: dict[str, int] = {}
        self.unknown_records = 0
        self._system: System | None = None
        self._memory: dict[str, Memory] = {}
        self._facts: Facts | None = None
        self._batch: Batch | None = None
        self.amp = AmpAccount()
        self.scenes, self.reached = Scenes(), Reached()
        self._newest_steps: dict[int, int] = {}
        self._ranks: RankRows | None = None
        self._apply: dict[type, Callable[[Any], None]] = {
            Hello: self._on_hello,
            LayerTable: passed_to(self.layers.adopt, self.finite.see),
            Step: self._on_step,
            DeviceStats: self._on_device_stats,
            Pending: lambda record: self._on_norms(record.step),
            Scalars: self._on_scalars,
            Facts: self._on_facts,
            Event: self.log.add_event,
            Symptom: passed_to(self.finite.see, self._on_symptom),
            CommandState: self.ledger.add,
            RankRows: self._on_ranks,
            System: self._on_system,
            Memory: self._on_memory,
            Output: self.log.add_output,
            Goodbye: self._on_goodbye,
            Loss: self._on_loss,
            Batch: self._on_batch,
            RingLost: self._on_ring_lost,
            **dict.fromkeys((Governor, ParameterSamples, Activations, Histogram), self.samples.add),
            **dict.fromkeys((Crash, Autopsy, FindingRecord, TrialRecord), self.scenes.add),
            **dict.fromkeys((AmpSkip, AmpCalls, AmpVerdict), self.amp.see),
            **dict.fromkeys((Breakpoints, InspectReply, SnapshotState), self.reached.add),
            **dict.fromkeys(EVIDENCE_ONLY, pass_over),
        }
        self.known = frozenset(self._apply)

    def apply(self, record: AnyRecord) -> None:
        """Take in one record; a kind this version does not know is counted."""
        known = self._apply.get(type(record))
        if known is None:
            self.unknown_records += 1
            self.count_lost("unknown record")
            return
        known(record)
        self.past.see(record)
        if isinstance(record, _COUNTED):
            self.amp.see(record)

    def count_lost(self, reason: str, count: int = 1) -> None:
        """Note records, or parts of records, that cannot be shown."""
        self.lost[reason] = self.lost.get(reason, 0) + count

    def frame(self, standing: Standing) -> Frame:
        """The picture of this moment."""
        hello, step = self.hello, self.step
        moving = standing.state in (LIVE, LATE)
        steps_per_s = self.pace.steps_per_s if moving else None
        total = hello.total_steps if hello else None
        done = None if step is None else step.step
        return Frame(
            state=standing.state,
            state_detail=standing.detail,
            run_id=plain(hello.run_id, 40) if hello else "",
            name=plain(hello.name, 200) if hello else "",
            host=plain(hello.host, 200) if hello else "",
            pid=hello.pid if hello else 0,
            rank=hello.rank if hello else 0,
            world_size=hello.world_size if hello else 1,
            step=done,
            total_steps=total,
            steps_per_s=steps_per_s,
            eta_s=_eta_s(total, done, steps_per_s),
            silent_for_s=standing.silent_for_s,
            series=dict[str, SeriesView](self.series),
            heat=self.layers.heat,
            layers=self.layers.table,
            system=self._system,
            memory=dict(self._memory),
            amp=self.amp.frame,
            clip=Clip(step.clip, step.max_norm) if step else Clip(),
            lrs=tuple(step.lrs) if step else (),
            timing=self.pace.timing(),
            events=self.log.events,
            commands=self.ledger.newest,
            alert=self.log.alert,
            exit=standing.exit,
            lost=_sum_of(self.lost, self.log.dropped, standing.lost),
            history_first_step=_history_first_step(self.series),
            facts=self._facts,
            data=_data_place(self, self._facts, moving),
            batch=self._batch,
            output=self.log.output,
            samples=self.samples,
            past=self.past,
            milestones=self.milestones.all,
            ranks=self._ranks,
            **_found(self.scenes, self.reached),
        )

    def sample(self, name: str, step: int, value: float) -> None:
        """Add one value to a series, which begins with its first value."""
        series = self.series.get(name)
        if series is None:
            if len(self.series) >= MAX_SERIES:
                return self.count_lost("too many series")
            series = self.series[name] = Series(plain(name, 200))
        if not series.append(step, value):
            self.count_lost("too late")

    def note_step(self, record: Step) -> None:
        """Let a step be the newest one without adding its values."""
        self._newest_steps[record.optimizer] = record.step
        self.finite.see(record)
        if record.optimizer == PRIMARY:
            self.step = record
            self.pace.add(record)
            self.milestones.see(record)

    def _on_hello(self, record: Hello) -> None:
        self.hello = record

    def _on_step(self, record: Step) -> None:
        newest = self._newest_steps.get(record.optimizer)
        if newest is not None and record.step <= newest:
            self._resume_at(record)
        suffix = _suffix(record.optimizer)
        loss = loss_of(record)
        if loss is not None:
            self._sample_loss(f"loss{suffix}", record.step, loss)
        self._sample_all(record, suffix)
        if record.step_s is not None:
            self.sample(f"step_s{suffix}", record.step, record.step_s)
        for group, lr in enumerate(record.lrs[:MAX_LR_GROUPS]):
            if lr is not None:
                self.sample(f"lr/{group}{suffix}" if group else f"lr{suffix}", record.step, lr)
        if record.skipped:
            self.sample(f"skipped{suffix}", record.step, 1.0)
        self.note_step(record)
        self._on_norms(record)

    def _on_device_stats(self, record: DeviceStats) -> None:
        suffix = _suffix(record.optimizer)
        loss = loss_of(record)
        if loss is not None:
            self.sample(f"loss{suffix}", record.step, loss)
        self._sample_all(record, suffix)
        self._on_norms(record)

    def _sample_all(self, record: Step | DeviceStats, suffix: str) -> None:
        """What both kinds of records may tell of a step."""
        for name, value in (
            ("grad_norm", record.grad_norm),
            (LEFT, norm_left(record, ever=LEFT + suffix in self.series)),
            ("loss_scale", record.loss_scale),
        ):
            if value is not None:
                self.sample(name + suffix, record.step, value)

    def _on_norms(self, record: Step | DeviceStats) -> None:
        if reason := self.layers.add(record):
            self.count_lost(reason)

    def _on_scalars(self, record: Scalars) -> None:
        for key, value in record.values.items():
            self.sample(logged_name(key), record.step, value)

    def _on_loss(self, record: Loss) -> None:
        self._sample_loss("loss", record.step, record.value)

    def _sample_loss(self, name: str, step: int, value: float) -> None:
        """Add a loss, once where `Loss` and `Step` tell the same."""
        series = self.series.get(name)
        if series is not None and series.last_step == step:
            last = series.last
            if last == value or (last != last and value != value):
                return
        self.sample(name, step, value)

    def _on_facts(self, record: Facts) -> None:
        self._facts = record

    def _on_batch(self, record: Batch) -> None:
        self._batch = record

    def _on_ranks(self, record: RankRows) -> None:
        self._ranks = record

    def _on_symptom(self, record: Symptom) -> None:
        time_s = self.pace.last_time_s or 0.0
        text = record.detail or record.kind
        if self.hello is not None and self.hello.world_size > 1:
            text = f"rank {record.rank}: {text}"
        self.log.add_event(Event(record.step, time_s, record.severity, record.kind, text))

    def _on_system(self, record: System) -> None:
        self._system = record
        self._sample_bytes("process", record.trainer_rss_bytes)

    def _on_memory(self, record: Memory) -> None:
        device = plain(record.device, 60)
        if device in self._memory or len(self._memory) < MAX_DEVICES:
            self._memory[device] = record
        self._sample_bytes(device, record.allocated_bytes)

    def _sample_bytes(self, device: str, size_bytes: int | None) -> None:
        if size_bytes is not None and self.step is not None:
            self.sample(memory_name(device), self.step.step, size_bytes / 2**30)

    def _on_goodbye(self, record: Goodbye) -> None:
        self.goodbye = record
        self.ledger.expire("the training ended before it was applied")

    def _on_ring_lost(self, record: RingLost) -> None:
        self.count_lost(plain(record.reason, 60), record.count)

    def _resume_at(self, record: Step) -> None:
        """The run was taken up again from an earlier step: what came after it is no more."""
        newest = self._newest_steps[record.optimizer]
        for name, series in self.series.items():
            if _optimizer_of(name) == record.optimizer:
                series.cut(record.step)
        if record.optimizer == PRIMARY:
            self.pace.restart()
            self.layers.cut(record.step)
            self.samples.cut(record.step)
            self.past.cut(record.step)
            self.milestones.cut(record.step)
            text = f"the run went back from step {newest:,} to {record.step:,}"
            self.log.add_event(Event(record.step, record.time_ns / 1e9, "info", "resumed", text))


def _data_place(state: RunState, facts: Facts | None, moving: bool) -> DataPlace | None:
    step = state.step
    if step is None or step.batch_index is None:
        return None
    batches = facts.batches_per_epoch if facts else None
    rate = state.pace.batches_per_s if moving else None
    eta_s = None
    if rate is not None and batches is not None:
        eta_s = max(0, batches - 1 - step.batch_index) / rate
    return DataPlace(step.data_epoch, step.batch_index, batches, eta_s)


def _history_first_step(every: dict[str, Series]) -> int | None:
    firsts = [
        series.first_step
        for name, series in every.items()
        if series.first_step is not None and _optimizer_of(name) == PRIMARY
    ]
    return min(firsts, default=None)


def _found(scenes: Scenes, reached: Reached) -> dict[str, Any]:
    """What was found out and what was asked for, by the names of the frame."""
    return {
        "crash": scenes.crash,
        "autopsies": scenes.autopsies,
        "findings": scenes.findings,
        "trials": scenes.trials,
        "breakpoints": reached.breakpoints,
        "snapshots": reached.snapshots,
        "inspections": reached.inspections,
    }


def _eta_s(total: int | None, done: int | None, steps_per_s: float | None) -> float | None:
    if not steps_per_s or total is None or done is None or done >= total:
        return None
    return (total - 1 - done) / steps_per_s


def _suffix(optimizer: int) -> str:
    return "" if optimizer == PRIMARY else f"@{optimizer}"


def _optimizer_of(name: str) -> int:
    """Whose steps a series counts; what the user logged counts those of the primary one."""
    base, _, index = name.rpartition("@")
    measured = base in MEASURED or base == "lr" or base.startswith("lr/")
    return int(index) if measured and index.isdigit() else PRIMARY


def _sum_of(*counts: dict[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for reason, count in each.items():
            if count:
                total[reason] = total.get(reason, 0) + count
    return total
