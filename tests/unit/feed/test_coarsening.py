"""Thinning keeps the bound and never loses what is telling; also where it is interrupted."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tuimon.feed.chronicle import Chronicle
from tuimon.feed.coarsening import DETAIL, Thinner, coarsened
from tuimon.feed.codec import encode
from tuimon.feed.frames import TRAINER, Frame, kind_of
from tuimon.feed.recorder import Recorder
from tuimon.feed.recording import Recording, read_recording
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.model.commands import Pause
from tuimon.model.findings import FindingRecord
from tuimon.model.records import (
    NAN,
    AnyRecord,
    BadTensor,
    CommandState,
    DeviceStats,
    Event,
    Goodbye,
    LayerTable,
    Loss,
    Scalars,
    Step,
    Symptom,
    System,
)

PID = 77
INFO = RunInfo("abcd1234", "night", "here", 0, "/x", ranks=[RankInfo(0, PID, 5, "77.ring")])
LAYERS = 60
TELLING = (Event, CommandState, Symptom, FindingRecord, Loss, Goodbye, LayerTable)


def a_long_run(steps: int, *, bad: frozenset[int] = frozenset()) -> list[AnyRecord]:
    """A run with something of everything."""
    random = np.random.default_rng(0)
    records: list[AnyRecord] = [LayerTable(0, [f"w{i}" for i in range(LAYERS)])]
    for step in range(steps):
        norms = random.random(LAYERS, np.float32) + 1
        flags = b""
        if step % 997 == 5:
            norms[7] = 1e4  # one layer, far from what it usually has
        if step in bad:
            norms[3], flags = np.nan, bytes([0, 0, 0, NAN]) + bytes(LAYERS - 4)
        loss = 1.0 + math.sin(step / 300) + (50.0 if step == steps // 3 else 0.0)
        records.append(
            Step(
                step,
                step * 10**6,
                loss=math.nan if step in bad else loss,
                grad_norm=float(random.random()),
                norms=norms.tobytes(),
                flags=flags,
                bad=[BadTensor("gradient", "w3", 1, 0, 0, 9)] if step in bad else [],
            )
        )
        if step % 100 == 0:
            records.append(System(step / 1000))
            records.append(Scalars(step, {"eval/loss": 1.0 / (step + 1)}))
        if step % 700 == 3:
            records.append(Event(step, step / 1000, "info", "mark", f"at {step}"))
            records.append(CommandState(f"c{step}", Pause().title, "applied", step=step))
    return [*records, Goodbye("ok", 0)]


def record_all(folder: Path, records: list[AnyRecord], max_bytes: int) -> Recorder:
    chronicle = Chronicle(INFO.id)
    recorder = Recorder(folder, INFO, PID, max_bytes=max_bytes, keep_free_bytes=0)
    for sequence, record in enumerate(records, 1):
        chronicle.add(record)
        recorder.append(encode(record), sequence)
        if sequence % 50 == 0:
            recorder.flush()
            if recorder.is_full:
                seen = None
                if recorder.wants_checkpoint:
                    seen = chronicle.snapshot(
                        up_to_sequence=sequence, scribe_sequence=0, written_at_s=0.0
                    )
                recorder.begin(seen, chronicle.last_step)
            recorder.thin(math.inf)
    recorder.close()
    return recorder


def everything(recording: Recording) -> list[AnyRecord]:
    return [record for _, record in recording.records()]


def test_a_long_run_stays_within_the_bound_and_keeps_what_is_telling(tmp_path: Path) -> None:
    bad = frozenset({17, 4000, 4001, 9001})
    records = a_long_run(12_000, bad=bad)
    recorder = record_all(tmp_path / "run", records, 1 << 20)
    assert recorder.problem == ""
    size = sum(file.stat().st_size for file in (tmp_path / "run").glob("*.tuimon"))
    assert size < 1.1 * (1 << 20) < 0.5 * sum(len(encode(each)) for each in records)
    recording = read_recording(tmp_path / "run")
    kept = everything(recording)
    assert recording.lost == {}
    assert recording.left_out == len(records) - len(kept)
    for cls in TELLING:
        was = [each for each in records if isinstance(each, cls)]
        assert [each for each in kept if isinstance(each, cls)] == was, cls
    steps = [each for each in kept if isinstance(each, Step)]
    numbers = [each.step for each in steps]
    assert numbers == sorted(set(numbers))
    assert bad <= set(numbers)
    assert 4000 in numbers  # the largest loss of the whole run, besides
    written = [each for each in records if isinstance(each, Step)]
    assert repr(steps[-200:]) == repr(written[-200:])  # the newest are all there
    levels = [each.head.level for each in recording.segments if each.head]
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] == 0 < levels[0]
    worst = {step for step in range(5, 12_000, 997)}
    assert len(worst & set(numbers)) >= len(worst) / 2


def test_every_step_that_is_kept_is_the_one_that_was_written(tmp_path: Path) -> None:
    records = a_long_run(3_000)
    record_all(tmp_path / "run", records, 1 << 20)
    whole = {repr(each) for each in records}
    assert all(repr(each) in whole for each in everything(read_recording(tmp_path / "run")))


def test_bounds_of_every_bucket_survive() -> None:
    records = a_long_run(640)
    kept = thinned(records, 1)
    for start in range(0, 640, 64):
        for name in ("loss", "grad_norm"):
            before, after = (
                [
                    getattr(each, name)
                    for each in some
                    if isinstance(each, Step) and start <= each.step < start + 64
                ]
                for some in (records, kept)
            )
            assert (min(before), max(before), before[-1]) == (min(after), max(after), after[-1])
            assert len(after) < 10


def thinned(records: list[AnyRecord], level: int) -> list[AnyRecord]:
    frames: list[Frame] = []
    thinner = Thinner(level, frames.append)
    by_ordinal = dict(enumerate(records, 1))
    for ordinal, record in by_ordinal.items():
        payload = encode(record)
        thinner.add(Frame(ordinal, ordinal, TRAINER, kind_of(payload), payload))
    thinner.close()
    assert thinner.left_out == len(records) - len(frames)
    return [by_ordinal[frame.ordinal] for frame in frames]


VALUES = st.floats(allow_nan=True, allow_infinity=True) | st.none()


@given(
    st.lists(st.tuples(VALUES, VALUES, st.booleans(), st.integers(0, 1)), max_size=150),
    st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_no_step_that_is_not_finite_is_ever_lost(
    figures: list[tuple[float | None, float | None, bool, int]], level: int
) -> None:
    records: list[AnyRecord] = []
    for step, (loss, norm, is_late, optimizer) in enumerate(figures):
        own = None if is_late else loss
        records.append(Step(step, 0, optimizer=optimizer, loss=own, grad_norm=norm, late=is_late))
        if is_late:
            records.append(DeviceStats(step, optimizer=optimizer, loss=loss))
    kept = {repr(each) for each in thinned(records, level)}
    for each in records:
        assert isinstance(each, Step | DeviceStats)
        values = (each.loss, each.grad_norm)
        if any(value is not None and not math.isfinite(value) for value in values):
            assert repr(each) in kept
    assert not records or repr([r for r in records if isinstance(r, Step)][-1]) in kept


def test_statistics_that_come_late_stay_with_their_steps() -> None:
    records: list[AnyRecord] = []
    for step in range(300):
        records.append(Step(step, 0, late=True))
        if step >= 2:
            records.append(DeviceStats(step - 2, loss=float(step % 50)))
    kept = thinned(records, 1)
    steps = {each.step for each in kept if isinstance(each, Step)}
    assert {each.step for each in kept if isinstance(each, DeviceStats)} <= steps
    losses = [each.loss for each in kept if isinstance(each, DeviceStats)]
    assert (min(losses), max(losses)) == (0.0, 49.0)


def test_statistics_that_are_not_finite_stay_also_without_their_step() -> None:
    records: list[AnyRecord] = []
    for step in range(300):
        records.append(Step(step, 0, late=True, step_s=float(step)))
        value = math.nan if step == 70 else float(step)
        records.append(DeviceStats(step, loss=float(step), grad_norm=value))
    kept = [each for each in thinned(records, 1) if isinstance(each, DeviceStats)]
    assert any(each.step == 70 for each in kept)
    assert len(kept) < 40


def test_a_thinning_that_was_interrupted_changes_nothing(tmp_path: Path) -> None:
    records = a_long_run(2_000)
    record_all(tmp_path / "run", records, 32 << 20)
    first, second = small_segments(tmp_path, records)
    before = everything(read_recording(tmp_path / "two"))
    work = coarsened([first, second], 1, 2002)
    for _ in range(3):
        next(work)
    left = sorted(file.name for file in (tmp_path / "two").iterdir())
    shutil.copytree(tmp_path / "two", tmp_path / "killed")  # what kill -9 would leave
    assert repr(everything(read_recording(tmp_path / "killed"))) == repr(before)
    work.close()
    assert len(list((tmp_path / "two").iterdir())) < len(left)
    Recorder(tmp_path / "killed", INFO, PID, keep_free_bytes=0).close()
    assert not list((tmp_path / "killed").glob(".*"))


def test_a_merged_segment_covers_the_one_that_was_not_deleted_yet(tmp_path: Path) -> None:
    first, second = small_segments(tmp_path, a_long_run(2_000))
    saved = second.path.read_bytes()
    for _ in coarsened([first, second], 1, 2002):
        pass
    assert not second.path.exists()
    merged = everything(read_recording(tmp_path / "two"))
    second.path.write_bytes(saved)
    assert repr(everything(read_recording(tmp_path / "two"))) == repr(merged)


def small_segments(tmp_path: Path, records: list[AnyRecord]):
    recorder = Recorder(tmp_path / "two", INFO, PID, keep_free_bytes=0)
    for sequence, record in enumerate(records, 1):
        if sequence == 1000:
            recorder.begin()
        recorder.append(encode(record), sequence)
    recorder.close()
    first, second = read_recording(tmp_path / "two").segments
    return first, second


def test_where_nothing_more_can_be_thinned_detail_is_no_longer_taken(tmp_path: Path) -> None:
    bad = frozenset(range(30_000))
    records = a_long_run(6_000, bad=bad)
    recorder = Recorder(tmp_path / "run", INFO, PID, max_bytes=1 << 20, keep_free_bytes=0)
    for sequence, record in enumerate(records, 1):
        recorder.append(encode(record), sequence)
        if sequence % 20 == 0:
            recorder.flush()
            if recorder.is_full:
                recorder.begin()
            recorder.thin(math.inf)
    recorder.close()
    size = sum(file.stat().st_size for file in (tmp_path / "run").glob("*.tuimon"))
    assert size < 1.3 * (1 << 20)
    kept = everything(read_recording(tmp_path / "run"))
    assert [each for each in kept if kind_of(encode(each)) not in DETAIL] == [
        each for each in records if kind_of(encode(each)) not in DETAIL
    ]
