"""Records in, frame out: nothing hidden, nothing invented, everything bounded."""

from __future__ import annotations

import math
import struct
from typing import Any, get_args

import numpy as np
import pytest

from tuimon.feed.chronicle import MAX_SERIES, Chronicle
from tuimon.model.loop import Warned
from tuimon.model.records import (
    NAN,
    NO_GRAD,
    POS_INF,
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
)
from tuimon.view.frame import CELL_NAN, HAS_NAN, HELD, LIVE, Amp, Clip, Frame
from tuimon.view.late_start import apply_history
from tuimon.view.log import MAX_EVENTS
from tuimon.view.store import RunState, Standing

TABLE = LayerTable(epoch=1, names=["a.weight", "a.bias", "b.weight"])


def step(index: int, **fields: Any) -> Step:
    fields.setdefault("time_ns", index * 100_000_000)
    fields.setdefault("epoch", 1)
    return Step(index, **fields)


def packed(*norms: float) -> bytes:
    return struct.pack(f"<{len(norms)}f", *norms)


def frame_of(*records: Any, state: str = LIVE) -> Frame:
    run = RunState()
    for record in records:
        run.apply(record)
    return run.frame(Standing(state))


def clipping(index: int, norm: float, left: float) -> Step:
    return step(index, grad_norm=norm, grad_norm_clipped=left)


NO = math.nan
NEVER_CLIPPED = [
    clipping(0, 3.0, 3.0),
    clipping(1, math.nan, math.nan),
    clipping(2, 7.0, 7.0000001),
]
ONCE_CLIPPED = [*NEVER_CLIPPED, clipping(3, 9.0, 1.0), clipping(4, 2.0, 2.0)]


@pytest.mark.parametrize(("steps", "samples"), [(NEVER_CLIPPED, 0), (ONCE_CLIPPED, 2)])
def test_what_clipping_leaves_is_a_series_from_the_first_clipped_step_on(steps, samples):
    run, chronicle, late = RunState(), Chronicle("id"), RunState()
    for record in steps:
        run.apply(record)
        chronicle.add(record)
    apply_history(late, chronicle.snapshot(up_to_sequence=9, scribe_sequence=0, written_at_s=0.0))
    for state in (run, late):
        clipped = state.series.get("grad_norm_clipped")
        assert (clipped.count if clipped else 0) == samples
        assert state.series["grad_norm"].count == len(steps)


def test_every_record_kind_is_known():
    run = RunState()
    for record in (
        Hello(1, "id", "name", "host", 7, total_steps=10),
        TABLE,
        step(0),
        DeviceStats(0),
        Scalars(0, {"train/acc": 0.5}),
        Facts(),
        Event(0, 1.0, "info", "pause", "paused"),
        Symptom("spike", 0, 0, "warning", "a spike"),
        CommandState("1", "Pause", "accepted"),
        System(1.0),
        Memory(1.0, "cuda:0", 5),
        Output(1.0, "stdout", "hello"),
        Goodbye("ok", 0),
        Loss(0, math.nan),
        RingLost(3, "too large"),
    ):
        run.apply(record)
    frame = run.frame(Standing(LIVE, lost={"overrun": 2}))
    assert run.unknown_records == 0
    assert (frame.name, frame.host, frame.pid, frame.total_steps) == ("name", "host", 7, 10)
    assert frame.lost == {"too large": 3, "overrun": 2}
    assert frame.series["train/acc"].last == 0.5
    assert frame.memory["cuda:0"].allocated_bytes == 5
    assert [line.text for line in frame.output] == ["hello"]
    run.apply(object())  # type: ignore[arg-type]
    assert run.unknown_records == 1


def test_no_kind_of_record_is_called_lost_because_it_is_not_drawn():
    """What another version writes is; what this one writes is shown or is for the scribe alone."""
    run = RunState()
    assert set(get_args(AnyRecord)) == run.known
    run.apply(Warned(0, "scheduler-order", "lr_scheduler.step() first"))
    assert run.frame(Standing(LIVE)).lost == {}


def test_a_fresh_state_draws():
    frame = RunState().frame(Standing())
    assert frame.step is None and frame.amp is None and frame.series == {}


def test_missing_values_make_no_samples():
    frame = frame_of(step(0, loss=1.0), step(1), step(2, loss=3.0, lrs=[None, 0.1]))
    assert frame.series["loss"].count == 2
    assert "grad_norm" not in frame.series and "lr" not in frame.series
    assert frame.series["lr/1"].last == pytest.approx(0.1)
    assert frame.lrs == (None, 0.1)


def test_a_skipped_step_stays_a_mark():
    frame = frame_of(
        step(0, grad_norm=1.0, loss_scale=4.0),
        step(1, grad_norm=math.nan, loss_scale=4.0, found_inf=True, skipped=True),
        step(2, grad_norm=1.0, loss_scale=2.0),
    )
    assert frame.series["grad_norm"].envelope(0, 3, 3).flags.tolist() == [8, HAS_NAN, 8]
    assert frame.series["skipped"].last_step == 1
    assert frame.amp == Amp(
        scale=2.0,
        skipped=1,
        attempted=3,
        last_skipped_step=1,
        scale_first=4.0,
        verdict="calibrating",
    )


def test_the_loss_of_an_update_is_that_of_all_its_batches():
    records = (
        TABLE,
        step(0, loss=0.5, loss_sum=1.25, backward_calls=2),
        step(1, loss=0.25),
        step(2, late=True),
        DeviceStats(2, loss=0.5, loss_sum=2.0, epoch=1),
    )
    series, chronicle = frame_of(*records).series["loss"], Chronicle("id")
    for record in records:
        chronicle.add(record)
    assert [series.value_at(index) for index in range(3)] == [(0, 1.25), (1, 0.25), (2, 2.0)]
    kept = chronicle.snapshot(up_to_sequence=0, scribe_sequence=0, written_at_s=0.0, lost={})
    assert np.frombuffer(kept.series["loss"].last, "<f8").tolist() == [1.25, 0.25, 2.0]


def test_a_loss_that_never_met_its_update_is_shown():
    frame = frame_of(step(0, loss=1.0), Loss(1, math.nan), Goodbye("exception", 1))
    assert math.isnan(frame.series["loss"].last)
    assert frame.series["loss"].last_step == 1 and frame.step == 0


def test_a_loss_that_is_told_twice_counts_once():
    frame = frame_of(
        Loss(0, math.nan),
        step(0, loss=math.nan),
        Loss(1, math.inf),
        Loss(1, math.nan),  # two micro-steps
        step(1, loss=3.0),
    )
    assert frame.series["loss"].count == 4


def test_device_statistics_join_their_step():
    frame = frame_of(
        TABLE,
        step(0, late=True),
        step(1, late=True),
        DeviceStats(0, epoch=1, loss=5.0, grad_norm=2.0, norms=packed(1, 1, 1)),
        DeviceStats(
            1, epoch=1, loss=math.nan, norms=packed(1, math.nan, 1), flags=bytes((0, NAN, 0))
        ),
    )
    assert frame.series["loss"].envelope(0, 2, 2).flags.tolist() == [8, HAS_NAN]
    assert frame.heat.cells([(1,)], 0, 2, 2).tolist() == [[4, CELL_NAN]]


def test_other_optimizers_have_their_own_series_and_rows():
    table = LayerTable(epoch=1, names=["g", "d"], optimizer_index=[0, 1])
    frame = frame_of(
        table,
        step(0, optimizer=1, loss=7.0, norms=packed(9, 1)),
        step(1, optimizer=1, loss=8.0, norms=packed(9, 1)),
        step(0, loss=1.0, norms=packed(2, math.nan), flags=bytes((0, NAN))),
        step(2, optimizer=1, loss=9.0, norms=packed(9, math.inf), flags=bytes((0, POS_INF))),
    )
    assert frame.step == 0
    assert frame.series["loss"].count == 1 and frame.series["loss@1"].count == 3
    assert frame.heat.latest_norm().tolist() == [2.0, math.inf]
    assert frame.heat.ever_bad().tolist() == [False, True]  # d by its own step, not by g's


def test_norms_without_their_table_are_counted():
    frame = frame_of(
        step(0, norms=packed(1, 1, 1)),
        TABLE,
        step(1, norms=packed(1, 1)),
        step(2, epoch=9, norms=packed(1, 1, 1)),
        step(3, norms=packed(1, 1, 1), flags=bytes(2)),
        step(4, norms=packed(1, 1, 1)),
    )
    assert frame.lost == {"no layer table": 2, "layer mismatch": 2}
    assert frame.heat.first_step == 4


def test_another_table_keeps_layers_by_name():
    run = RunState()
    run.apply(TABLE)
    run.apply(step(0, norms=packed(1, 1, math.nan), flags=bytes((0, 0, NAN))))
    run.apply(TABLE)  # the trainer repeats it
    assert run.layers.heat.ever_bad().tolist() == [False, False, True]
    run.apply(LayerTable(epoch=2, names=["b.weight", "new"]))
    run.apply(step(1, epoch=2, norms=packed(1, 1)))
    assert run.layers.heat.ever_bad().tolist() == [True, False]


def test_a_resumed_run_is_cut_to_its_step():
    run = RunState()
    run.apply(TABLE)
    for index in range(10):
        run.apply(step(index, loss=float(index), norms=packed(1, 1, 1)))
        run.apply(Scalars(index, {"acc@5": 1.0}))
    run.apply(step(0, optimizer=1, loss=1.0))
    run.apply(step(4, loss=40.0, norms=packed(1, 1, 1)))
    frame = run.frame(Standing(LIVE))
    assert frame.step == 4 and frame.heat.last_step == 4
    assert frame.series["loss"].last_step == 4 and frame.series["loss"].maximum == 40.0
    assert frame.series["acc@5"].last_step == 3
    assert frame.series["loss@1"].count == 1
    assert frame.events[-1].kind == "resumed"


def test_the_newest_batch_that_was_looked_at():
    frame = frame_of(Batch(0, 0, "first"), Batch(50, 0, "sample"))
    assert frame.batch is not None and frame.batch.step == 50
    assert frame.lost == {}


def test_clip_is_what_the_newest_step_saw():
    frame = frame_of(step(0), step(1, clip="on", max_norm=0.5))
    assert frame.clip == Clip("on", 0.5)


def test_commands_never_go_back_and_expire_at_the_end():
    run = RunState()
    run.apply(CommandState("1", "Pause", "sent", by="me", asked_at_s=5.0))
    run.apply(CommandState("1", "Pause", "applied", step=3))
    run.apply(CommandState("1", "Pause", "accepted"))
    run.apply(CommandState("2", "Stop", "accepted"))
    first, second = run.frame(Standing(LIVE)).commands
    assert (first.state, first.step, first.by, first.asked_at_s) == ("applied", 3, "me", 5.0)
    assert second.state == "accepted"
    run.apply(Goodbye("ok", 0))
    first, second = run.frame(Standing(LIVE)).commands
    assert (first.state, second.state) == ("applied", "expired")


def test_the_newest_critical_event_is_the_alert():
    frame = frame_of(
        step(7),
        Event(7, 1.0, "critical", "a", "first"),
        Symptom("non-finite-gradient", 7, 0, "critical", "NaN in 3 layers"),
        Event(8, 2.0, "warning", "b", "later"),
    )
    assert frame.alert.text == "NaN in 3 layers" and frame.alert.kind == "non-finite-gradient"
    assert [event.text for event in frame.events] == ["first", "NaN in 3 layers", "later"]


def test_text_from_data_cannot_reach_the_terminal_as_control():
    frame = frame_of(
        Hello(1, "i", "\x1b[2Jname", "h\n", 1),
        Event(0, 1.0, "critical", "k\x07", "a\x1b]52;c;x\x07b", "d\u202e"),
        CommandState("1", "P\x1b", "refused", reason="\x9b31m", old="\x00", new="\r"),
        Output(1.0, "stdout", "\x1b[31mred"),
        Memory(1.0, "cuda\x1b", 1),
    )
    event, command = frame.events[0], frame.commands[0]
    texts = [frame.name, frame.host, event.kind, event.text, event.detail, command.command]
    texts += [command.reason, command.old, command.new, frame.output[0].text, *frame.memory]
    assert all(text.isprintable() for text in texts)


def test_what_does_not_fit_is_bounded_and_counted():
    run = RunState()
    for index in range(MAX_EVENTS + 10):
        run.apply(Event(index, 0.0, "info", "k", str(index)))
    run.apply(Scalars(0, {f"k{i}": 1.0 for i in range(MAX_SERIES + 5)}))
    frame = run.frame(Standing(LIVE))
    assert len(frame.events) == MAX_EVENTS and frame.events[-1].text == str(MAX_EVENTS + 9)
    assert len(frame.series) == MAX_SERIES
    assert frame.lost == {"older events": 10, "too many series": 5}


def test_a_late_viewer_sees_the_whole_run():
    records: list[Any] = [Hello(1, "id", "n", "h", 1), TABLE]
    rng = np.random.default_rng(0)
    for index in range(5000):
        bad = index == 137
        norms = packed(1.0, math.nan if bad else 1.0, 0.0)
        flags = bytes((0, NAN if bad else 0, NO_GRAD))
        records.append(
            step(
                index,
                loss=math.inf if index == 200 else float(rng.normal()),
                norms=norms,
                flags=flags,
                loss_scale=2.0,
                skipped=bad,
            )
        )
    records.append(Event(137, 1.0, "critical", "k", "bad"))
    records.append(CommandState("1", "Pause", "applied", step=3))
    chronicle, early = Chronicle("id"), RunState()
    for record in records:
        chronicle.add(record)
        early.apply(record)
    late = RunState()
    history = chronicle.snapshot(up_to_sequence=1, scribe_sequence=1, written_at_s=0.0)
    apply_history(late, history)
    for state in (early, late):
        for index in range(5000, 5010):
            state.apply(step(index, loss=0.5, norms=packed(1, 1, 0), flags=bytes((0, 0, NO_GRAD))))
    early_frame, late_frame = early.frame(Standing(LIVE)), late.frame(Standing(LIVE))
    assert late_frame.step == early_frame.step == 5009
    assert late_frame.amp == early_frame.amp
    assert late_frame.alert == early_frame.alert and late_frame.commands == early_frame.commands
    assert late_frame.history_first_step == 0
    left, right = (f.series["loss"].envelope(0, 5010, 60) for f in (early_frame, late_frame))
    assert (left.flags == right.flags).all()
    assert late_frame.series["loss"].minimum == pytest.approx(early_frame.series["loss"].minimum)
    groups = [(0,), (1,), (2,)]
    left_cells, right_cells = (f.heat.cells(groups, 0, 5010, 50) for f in (early_frame, late_frame))
    assert (left_cells[0] == right_cells[0]).all() and (right_cells[2] == 0).all()
    assert (right_cells[1] == CELL_NAN).sum() == 1
    assert late_frame.heat.ever_bad().tolist() == [False, True, False]


def test_an_update_that_is_held_is_in_the_map_before_it_is_made() -> None:
    healthy = step(4, norms=packed(1.0, 1.0, 1.0))
    bad = step(5, norms=packed(1.0, math.nan, 1.0), flags=bytes([0, NAN, 0]))
    held = frame_of(TABLE, healthy, Pending(bad), state=HELD)
    assert held.step == 4 and held.heat is not None
    assert held.heat.latest_flags().tolist() == [0, NAN, 0]
    assert held.heat.first_bad().tolist() == [-1, 5, -1]
    made = frame_of(TABLE, healthy, Pending(bad), bad, step(6, norms=packed(1.0, 1.0, 1.0)))
    assert made.heat is not None and made.step == 6
    assert made.heat.cells([[1]], 4, 7, 3).tolist()[0][1] == CELL_NAN
    assert made.heat.latest_flags().tolist() == [0, 0, 0]
    assert not [event for event in made.events if event.kind == "resumed"]
