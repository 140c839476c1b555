"""Epochs and jumps of a learning rate are noted, for a late viewer as well; schedules are not."""

from __future__ import annotations

from tuimon.feed.chronicle import Chronicle
from tuimon.feed.milestones import EPOCH, HELD_STEPS, MAX_MILESTONES, RATE, Milestones
from tuimon.model.records import Memory, Step, System
from tuimon.view.frame import LIVE
from tuimon.view.late_start import apply_history
from tuimon.view.store import RunState, Standing


def step(at: int, lr: float | None = None, epoch: int | None = None) -> Step:
    return Step(at, at, loss=1.0, lrs=[] if lr is None else [lr], data_epoch=epoch, batch_index=0)


def seen(*steps: Step) -> tuple[tuple[int, str, str], ...]:
    found = Milestones()
    for each in steps:
        found.see(each)
    return found.all


def test_the_first_pass_is_no_milestone_but_the_next_ones_are() -> None:
    found = seen(*(step(at, epoch=at // 5) for at in range(15)))
    assert [each[:2] for each in found] == [(5, EPOCH), (10, EPOCH)]
    assert found[0][2] == "epoch 1 begins"


def test_a_rate_that_jumps_is_told_and_one_that_glides_is_not() -> None:
    held = seen(*(step(at, 3e-4 if at < 50 else 1e-4) for at in range(100)))
    assert [each[:2] for each in held] == [(50, RATE)] and "0.0003 → 0.0001" in held[0][2]
    assert seen(*(step(at, 1e-6 * (at + 1)) for at in range(100))) == ()
    by_epoch = seen(*(step(at, 0.1 ** (at // HELD_STEPS)) for at in range(4 * HELD_STEPS)))
    assert len(by_epoch) == 3


def test_they_are_bounded_and_forgotten_where_a_run_goes_back() -> None:
    found = Milestones()
    for at in range(2 * MAX_MILESTONES + 2):
        found.see(step(at, epoch=at))
    assert len(found.all) == MAX_MILESTONES
    found.cut(found.all[3][0])
    assert len(found.all) == 3
    kept = found.all
    assert found.all is kept


def test_a_late_viewer_has_them_and_the_memory() -> None:
    records = [
        record
        for at in range(60)
        for record in (
            step(at, 3e-4 if at < 30 else 1e-4, at // 40),
            Memory(float(at), "cuda:0", (at + 1) << 30),
            System(float(at), [], trainer_rss_bytes=2 << 30),
        )
    ]
    live, chronicle = RunState(), Chronicle("r")
    for record in records:
        live.apply(record)
        chronicle.add(record)
    late = RunState()
    apply_history(late, chronicle.snapshot(up_to_sequence=9, scribe_sequence=9, written_at_s=1.0))
    one, other = live.frame(Standing(LIVE)), late.frame(Standing(LIVE))
    assert one.milestones == other.milestones and len(one.milestones) == 2
    for frame in (one, other):
        assert frame.series["memory/cuda:0"].maximum == 60
        assert frame.series["memory/process"].last == 2
        assert frame.series["memory/cuda:0"].last_step == 59
    late.apply(step(60, 1e-4, 1))
    assert len(late.frame(Standing(LIVE)).milestones) == 2
