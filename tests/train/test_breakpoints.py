"""Breakpoints in a real loop: what is judged, when it holds, how it ends, what it leaves alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed, wait_for
from tests.train.test_gate import Training, applied
from tuimon.model import commands
from tuimon.model.autopsy import Autopsy
from tuimon.model.breakpoints import Breakpoints
from tuimon.model.records import NAN, PAUSED, RUNNING, CommandState, DeviceStats, Event
from tuimon.train import monitor as monitors
from tuimon.train.control.policy import Policy


def breaks(feed: Feed) -> list[Event]:
    return [event for event in feed.events if event.kind == "breakpoint"]


def refusal(feed: Feed, command: commands.Command) -> str:
    answer = feed.ask(command)
    if answer.state == "accepted":
        wait_for(lambda: len(feed.states(answer.id)) > 1)
        answer = feed.states(answer.id)[-1]
    assert answer.state == "refused"
    return answer.reason


def test_a_hit_holds_at_the_gate_until_somebody_resumes(feed: Feed) -> None:
    training = Training(feed)

    def viewer() -> None:
        wait_for(lambda: training.steps_done > 3)
        at = applied(feed, commands.Pause()).step or 0
        wait_for(lambda: training.header()[0] == PAUSED)
        told = applied(feed, commands.SetBreakpoint(f"grad_norm>0 and step >= {at + 5}"))
        assert told.new == "breakpoint 1"
        applied(feed, commands.SetBreakpoint("lr > 1"))
        assert "already" in refusal(feed, commands.SetBreakpoint("lr>1.0"))
        applied(feed, commands.Resume())
        wait_for(lambda: training.header()[0] == PAUSED and training.steps_done == at + 5)
        (event,) = breaks(feed)
        assert event.step == at + 5 and event.until_s is not None
        assert event.text.startswith(f"breakpoint 1: grad_norm > 0 and step >= {at + 5} (grad_n")
        assert event.text.endswith(f" at step {at + 5}") and "tester@here" in event.detail
        items = feed.of(Breakpoints)[-1].items
        assert [(each.number, each.hits, each.last_step) for each in items] == [
            (1, 1, at + 5),
            (2, 0, None),
        ]
        applied(feed, commands.StepOnce(1))  # it is a pause like another
        wait_for(lambda: training.header() == (PAUSED, at + 5))
        assert len(breaks(feed)) == 1, "it holds when it becomes true, not while it is"
        applied(feed, commands.ScaleLr(1000.0))
        wait_for(lambda: training.header()[0] == PAUSED)
        applied(feed, commands.Resume())
        wait_for(lambda: len(breaks(feed)) == 2)
        assert "breakpoint 2: lr > 1 (lr = 10)" in breaks(feed)[-1].text
        cleared = applied(feed, commands.ClearBreakpoint(2))
        assert (cleared.old, cleared.new) == ("breakpoint 2", "cleared")
        assert "no breakpoint 2" in refusal(feed, commands.ClearBreakpoint(2))
        applied(feed, commands.ReleaseLr())
        resumed = applied(feed, commands.Resume())
        wait_for(lambda: training.steps_done > (resumed.step or 0) + 3)
        assert training.header()[0] == RUNNING
        applied(feed, commands.ClearBreakpoint())
        assert feed.of(Breakpoints)[-1].items == []
        assert not monitors._wiring.observer.breaks.armed

    training.with_viewer(viewer)
    steps = feed.steps
    assert max(step.cost_s for step in steps) < 1.0, "the wait counts as a cost"
    assert steps[-1].step + 1 == training.steps_done == len(steps)


def test_it_ends_by_itself_and_a_stop_ends_it(feed: Feed) -> None:
    training = Training(feed)
    training.monitor.close()
    tuimon.watch(training.model, training.optimizer, policy=Policy(hold_limit_s=0.3))

    def viewer() -> None:
        wait_for(lambda: training.steps_done > 1)
        applied(feed, commands.SetBreakpoint("step > 0"))
        wait_for(lambda: any(event.kind == "pause-ended" for event in feed.events))
        done = training.steps_done
        wait_for(lambda: training.steps_done > done + 2)
        assert len(breaks(feed)) == 1
        applied(feed, commands.SetBreakpoint("step > 1"))
        wait_for(lambda: training.header()[0] == PAUSED)

    training.with_viewer(viewer)


def test_what_is_decided_at_a_hit_is_about_the_update_that_is_held(feed: Feed) -> None:
    training = Training(feed)
    training.monitor.close()
    tuimon.watch(training.model, training.optimizer, snapshot_every=1)

    def hold() -> int:
        at = training.steps_done + 5
        told = applied(feed, commands.SetBreakpoint(f"step >= {at}"))
        wait_for(lambda: training.header()[0] == PAUSED)
        applied(feed, commands.ClearBreakpoint(int((told.new or "").split()[-1])))
        return breaks(feed)[-1].step or 0

    def viewer() -> None:
        wait_for(lambda: training.steps_done > 3)
        left_out = []
        for command in (commands.SkipUpdate(2), commands.RollBack()):
            at = hold()
            told = applied(feed, command)
            assert told.old == "paused", "it ends the hold, as that of a bad update"
            count = getattr(command, "count", 1)
            said = f"update {at} left out" if count == 1 else f"{count} left out from update {at}"
            assert said in (told.new or "") and told.step == at
            left_out += range(at, at + count)
            wait_for(lambda at=at: training.steps_done > at + 3)
            assert training.header()[0] == RUNNING
        at = hold()
        applied(feed, commands.Pause())  # which nothing but a resume ends
        skipped = applied(feed, commands.SkipUpdate())
        assert skipped.old is None and training.header()[0] == PAUSED
        applied(feed, commands.Resume())
        left_out.append(at)
        wait_for(lambda: training.steps_done > at + 1)
        at = hold()
        applied(feed, commands.RunAutopsy())
        clip = applied(feed, commands.SetClip("on", 1e-9))
        applied(feed, commands.Resume())
        wait_for(lambda: training.steps_done > (clip.step or 0) + 1)
        hold()
        off = applied(feed, commands.SetClip("off"))
        applied(feed, commands.Resume())
        wait_for(lambda: training.steps_done > (off.step or 0) + 1)
        steps = feed.steps
        assert [each.step for each in feed.of(Autopsy)] == [at]
        assert [step.step for step in steps if step.left_out] == left_out
        clipped = [step.step for step in steps if (step.grad_norm_clipped or 1) < 1e-8]
        assert clipped == list(range(clip.step or 0, off.step or 0)), "from the held update on"

    training.with_viewer(viewer)


def looped(
    feed: Feed, conditions: list[str], spoil: Callable[[nn.Module, int], None], steps: int = 6
) -> list[str]:
    """Texts of the hits of a loop that nobody holds up."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer, policy=Policy(hold_limit_s=0.01))
    answers = []
    for step in range(steps):
        if step == 1:
            answers = [feed.ask(commands.SetBreakpoint(each)) for each in conditions]
        spoil(model, step)
        optimizer.zero_grad()
        for _ in range(2):
            (model(torch.ones(2, 3)).sum() * 0.5).backward()
        with torch.no_grad():
            model(torch.full((2, 3), 1e6))  # an evaluation is not listened to
        optimizer.step()
        assert not any(module._forward_hooks for module in list(model.modules())[1:])
    for answer in answers:
        states: list[CommandState] = feed.states(answer.id)
        assert [state.state for state in states] == ["accepted", "applied"], states
    return [event.text for event in breaks(feed)]


def grow(model: nn.Module, step: int) -> None:
    if step == 3:
        with torch.no_grad():
            model[2][0].weight.fill_(1e5)


def poison(model: nn.Module, step: int) -> None:
    if step == 3:
        with torch.no_grad():
            model[2][0].weight.fill_(math.nan)
    elif step == 4:
        with torch.no_grad():
            for param in model.parameters():
                param.fill_(0.5)


def test_outputs_weights_and_gradients_are_looked_at(feed: Feed) -> None:
    texts = looped(
        feed,
        ['output "2" absmax > 1e4', 'weight "2.*" absmax > 1e4', 'grad "0" norm > 1e4',
         "loss > 1e4 or loss < -1e4", 'output "1" absmax > 1e4'],
        grow,
    )  # fmt: skip
    assert [text.partition(":")[0] for text in texts] == [f"breakpoint {n}" for n in (1, 2, 3, 4)]
    assert "(output 2 absmax = " in texts[0] and "at step 3" in texts[0]
    assert "(weight 2.0.weight absmax = 100,000)" in texts[1]
    assert "(grad 0.weight norm = " in texts[2] and " and 1 more)" in texts[2]


def test_what_is_not_finite_is_found_where_it_is(feed: Feed) -> None:
    texts = looped(
        feed,
        ['nan in "0.*"', "nan in loss", 'nan in output "2.0"', 'nan in weight "0"',
         'non_finite in weight "*"', "inf in loss", "grad_norm > 1e3"],
        poison,
    )  # fmt: skip
    assert [text.partition(" at step")[0] for text in texts] == [
        'breakpoint 1: nan in "0.*" (NaN in 0.weight and 1 more)',
        "breakpoint 2: nan in loss (NaN in loss)",
        'breakpoint 3: nan in output "2.0" (NaN in 2.0 and 1 more)',
        'breakpoint 5: non_finite in weight "*" (either in 2.0.weight)',
    ]


@pytest.mark.usefixtures("every_step")
def test_sampled_updates_are_compared(feed: Feed) -> None:
    texts = looped(feed, ['update "*" ratio > 1e-9'], lambda model, step: None)
    assert len(texts) == 1 and "ratio = " in texts[0]


def test_what_can_never_be_judged_is_refused(feed: Feed) -> None:
    training = Training(feed)
    unknown = {
        'nan in "nope.*"': "no layer 'nope.*'",
        'output "nope" absmax > 1': "no module 'nope'",
        "lr/7 > 1": "no param_group 7; there are 1",
    }

    def viewer() -> None:
        wait_for(lambda: training.steps_done > 1)
        for condition, reason in unknown.items():
            assert reason in refusal(feed, commands.SetBreakpoint(condition))
        assert "column 8" in refusal(feed, commands.SetBreakpoint("loss > > 1"))
        assert not monitors._wiring.observer.breaks.armed
        for number in range(32):
            applied(feed, commands.SetBreakpoint(f"step > {10**9 + number}"))
        assert "32 breakpoints are set" in refusal(feed, commands.SetBreakpoint("lr > 2"))

    training.with_viewer(viewer)


def test_the_same_numbers_with_breakpoints_that_are_not_hit(feed: Feed) -> None:
    def trained(conditions: list[str]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        monitor = tuimon.watch(model, optimizer)
        for condition in conditions:
            assert feed.ask(commands.SetBreakpoint(condition)).state == "accepted"
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).pow(2).mean().backward()
            optimizer.step()
        monitor.close()
        return [param.detach().clone() for param in model.parameters()]

    free = trained([])
    never = ['output "*" absmax > 1e30', 'weight "*" norm > 1e30', 'nan in "*"', "loss > 1e30"]
    assert all(map(torch.equal, free, trained([*never, 'grad "*" norm > 1e30'])))
    assert not breaks(feed)


def test_on_a_device_what_has_arrived_is_judged_once(feed: Feed) -> None:
    training = Training(feed, steps=3)
    training.loop()
    observer = monitors._wiring.observer
    track = observer.roster.primary
    names = feed.table.names
    norms, flags = torch.ones(len(names)), torch.zeros(len(names), dtype=torch.uint8)
    norms[0], flags[1] = 7.0, NAN

    def arrived(step: int, grad_norm: float) -> None:
        newest = DeviceStats(
            step, epoch=feed.table.epoch, loss=2.0, grad_norm=grad_norm,
            norms=norms.numpy().tobytes(), flags=flags.numpy().tobytes(),
        )  # fmt: skip
        track.late = SimpleNamespace(newest=newest)

    asked = ["grad_norm > 5 and step >= 1", 'grad "0" norm > 6', f'nan in "{names[1]}"', "loss > 3"]
    for condition in asked:
        assert feed.ask(commands.SetBreakpoint(condition)).state == "accepted"
    observer.gate.at_gate(track)
    late, found = track.late, []
    try:
        for step, grad_norm in ((0, 9.0), (1, 9.0), (1, 9.0), (2, 1.0)):
            arrived(step, grad_norm)
            found.append(observer.breaks.judge(track))
    finally:
        track.late = late
    assert found == [True, True, False, False]
    texts = [event.text for event in breaks(feed)]
    assert texts[0].startswith('breakpoint 2: grad "0" norm > 6 (grad 0.weight norm = 7)')
    assert texts[1].startswith("breakpoint 3: nan in ")
    assert texts[2].endswith("(grad_norm = 9) at step 1, seen 2 updates later")
    assert len(texts) == 3
