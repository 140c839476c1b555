"""Trainings of several processes: one run, and every command at the same step on all of them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.process import replicas
from tests.process.job import Job, same, wait_for
from tuimon.cli.listing import describe, table
from tuimon.feed import registry
from tuimon.feed.history import read_history
from tuimon.feed.registry import RunInfo
from tuimon.model import commands
from tuimon.model.ranks import RankRows
from tuimon.model.records import HELD, PAUSED, RUNNING, CommandState, Step
from tuimon.model.shards import whole_norm
from tuimon.view.session import watch_run

pytestmark = pytest.mark.timeout(500)
GROUP_LIMIT_S = 2.0
BOUND = 0.001
RANKS = range(4)
HALVES = range(2)  # the ranks that a model is sharded over
Applied = Callable[..., int]  # asks for a command, and gives the step at which all applied it


@dataclass
class ByHand:
    """What a script would have written to get the same updates."""

    max_norms: dict[int, float] = field(default_factory=lambda: {0: replicas.MAX_NORM})
    factors: dict[int, float] = field(default_factory=lambda: {0: 1.0})
    left_out: set[int] = field(default_factory=set)

    def parameters(self, updates: int) -> list[torch.Tensor]:
        """After so many updates of one process that draws the batches of all ranks."""
        model = replicas.small()
        params = list(model.parameters())
        optimizer = torch.optim.SGD(params, lr=replicas.LR, momentum=replicas.MOMENTUM)
        draws = [torch.Generator().manual_seed(rank) for rank in RANKS]
        max_norm, factor = math.inf, 1.0
        for step in range(updates):
            losses = [model(replicas.draw(each)).pow(2).mean() for each in draws]
            shares = [torch.autograd.grad(loss, params) for loss in losses]
            for param, *parts in zip(params, *shares, strict=True):
                param.grad = replicas.mean(parts)
            max_norm = self.max_norms.get(step, max_norm)
            factor = self.factors.get(step, factor)
            nn.utils.clip_grad_norm_(params, max_norm)
            optimizer.param_groups[0]["lr"] = replicas.LR * factor
            if step not in self.left_out:
                optimizer.step()
        return [param.detach() for param in params]


def asker(job: Job) -> Applied:
    def applied(command: commands.Command) -> int:
        state = same(job.outcome(command))
        assert state.state == "applied", state.reason
        assert state.step is not None
        return state.step

    return applied


@pytest.mark.hazard(43, 47)
def test_replicated(tmp_path: Path) -> None:
    """Four ranks of torchrun and many commands; all end at the same step with the same weights."""
    with Job(
        tmp_path, size=4, launcher="torchrun", scribe=True, group_limit_s=GROUP_LIMIT_S
    ) as job:
        applied = asker(job)
        wait_for(lambda: min(map(job.step, RANKS)) > 8)
        (tmp_path / "slow-3").touch()
        paused_at = applied(commands.Pause())
        assert applied(commands.StepOnce(3)) == paused_at
        wait_for(lambda: [*map(job.step, RANKS)] == [paused_at + 2] * 4)
        changes(job, applied, tmp_path)
        takings(job, applied, tmp_path)
        returns(job, applied)
        stands(job)
        (tmp_path / "slow-3").unlink()
        pauses_long(job, applied, tmp_path)
        holds(job, applied, tmp_path)
        breaks(job, applied)
        stopped_at = applied(commands.Stop())
        ends = job.end()
        report = job.report()
    assert ends[0] == ends[1] == ends[2] == ends[3]
    assert ends[0]["stopped"] == f"stopped by tester@here at step {stopped_at}"
    assert [process.returncode for process in job.processes] == [0]
    assert [each["straggles"] for each in report["run"]["by_rank"]] == [False, False, False, True]
    # A store that is asked after its end prints where in it that was.
    assert "c10d" not in job.stderr(0) and "could not be" not in job.stderr(0)


def rows_of(run: RunInfo) -> RankRows:
    """What a late reader of the history sees."""
    history = read_history(run.history())
    return (history and history.ranks) or RankRows(0.0)


def stands(job: Job) -> None:
    """One run with a row for each rank, any of which a viewer can look at; who is slow is told."""
    (info,) = registry.list_runs()
    assert [each.rank for each in info.ranks] == [*RANKS] and info.world_size == 4
    wait_for(lambda: [e.straggles for e in rows_of(info).rows] == [False, False, False, True])
    assert [row.pid for row in rows_of(info).rows] == [each.pid for each in info.ranks]
    with contextlib.closing(watch_run(info)) as session:

        def shows(rank: int) -> bool:
            frame = session.tick()
            is_there = frame.step is not None and frame.ranks is not None
            return is_there and (frame.rank, frame.pid) == (rank, info.ranks[rank].pid)

        wait_for(lambda: shows(0))
        session.look_at(3)
        wait_for(lambda: shows(3))


def changes(job: Job, applied: Applied, folder: Path) -> None:
    """Bit for bit what the script would have done by itself."""
    hand = ByHand()
    hand.max_norms[applied(commands.SetClip("on", 0.5))] = 0.5
    applied(commands.Resume())
    from_step = applied(commands.ScaleLr(0.5))
    hand.factors[from_step] = 0.5
    wait_for(lambda: min(map(job.step, RANKS)) > from_step + 2)
    for rank in RANKS:
        steps = {step.step: step for step in job.of(Step, rank)}
        assert steps[from_step - 1].lrs == [0.01] and steps[from_step].lrs == [0.005]
        assert steps[from_step].max_norm == 0.5 and steps[from_step].clip == "on"
    hand.factors[applied(commands.ReleaseLr())] = 1.0
    hand.max_norms[applied(commands.SetMaxNorm(0.1))] = 0.1
    hand.max_norms[applied(commands.SetClip("user"))] = replicas.MAX_NORM
    skipped = applied(commands.SkipUpdate(2))
    hand.left_out = {skipped, skipped + 1}
    wait_for(lambda: min(map(job.step, RANKS)) > skipped + 2)
    step = applied(commands.Dump([""], str(folder / "dumps")))
    names = sorted(path.name for path in (folder / "dumps").iterdir())
    assert names == [f"step-{step:06d}-rank-{rank}" for rank in RANKS]
    expected = hand.parameters(step)
    for name in names:
        dumped = load_file(folder / "dumps" / name / "tensors.safetensors")
        values = [dumped[each] for each in ("0.weight", "0.bias", "2.weight", "2.bias")]
        assert all(map(torch.equal, values, expected))


def takings(job: Job, applied: Applied, folder: Path) -> None:
    """One rank writes the checkpoint; where one fails, all have failed; one rank is examined."""
    step = applied(commands.SaveCheckpoint(str(folder / "saved")))
    assert [path.name for path in (folder / "saved").iterdir()] == [f"checkpoint-{step:06d}.pt"]
    state = same(job.outcome(commands.SaveCheckpoint("/proc/nowhere")))
    assert state.state == "refused" and state.reason.startswith("rank 0: the checkpoint needs")
    told = [state.new for state in job.outcome(commands.RunAutopsy(1))]
    assert told == ["on rank 1", "at this update", "on rank 1", "on rank 1"]


def returns(job: Job, applied: Applied) -> None:
    """All go back to the snapshot of the same update."""
    states = job.outcome(commands.RollBack(0.5))
    assert same(states).state == "applied" and len({state.new for state in states}) == 1
    applied(commands.Undo())


def pauses_long(job: Job, applied: Applied, folder: Path) -> None:
    """Longer than the time-out of the process group: nothing waits in a collective meanwhile."""
    (folder / "impatient").touch()
    since = max(map(job.step, RANKS))
    wait_for(lambda: min(map(job.step, RANKS)) > since + 1)
    applied(commands.Pause())
    wait_for(lambda: [*map(job.state, RANKS)] == [PAUSED] * 4)
    until_s = time.monotonic() + GROUP_LIMIT_S + 1
    wait_for(lambda: time.monotonic() > until_s)
    step = applied(commands.Resume())
    (folder / "impatient").unlink()
    wait_for(lambda: min(map(job.step, RANKS)) > step + 1)


def holds(job: Job, applied: Applied, folder: Path) -> None:
    """One rank's bad batch spoils all gradients: each holds by itself, one decision frees all."""
    applied(commands.ArmHold())
    (folder / "poison-1").touch()
    wait_for(lambda: [*map(job.state, RANKS)] == [HELD] * 4)
    (folder / "poison-1").unlink()
    wait_for(lambda: rows_of(job.runs[0]).first_bad == 1)  # all have the same gradients
    step = applied(commands.SkipUpdate())
    wait_for(lambda: min(map(job.step, RANKS)) > step + 5)
    assert [*map(job.state, RANKS)] == [RUNNING] * 4
    # Armed by a viewer of one rank, it ends on all of them with its signs of life.
    applied(commands.ArmHold(0.2))
    said = "the last viewer has left"
    wait_for(lambda: all(any(said in e.by for e in job.of(CommandState, r)) for r in RANKS))


def breaks(job: Job, applied: Applied) -> None:
    """A breakpoint that ranks hit is one pause of all of them."""
    applied(commands.SetBreakpoint("step > 1"))
    wait_for(lambda: [*map(job.state, RANKS)] == [PAUSED] * 4)
    assert len(set(map(job.step, RANKS))) == 1
    applied(commands.Resume())
    applied(commands.ClearBreakpoint())


_OF_THE_WHOLE = (
    commands.RollBack(),
    commands.SaveCheckpoint("/tmp"),
    commands.RunAutopsy(),
)


@pytest.mark.hazard(13, 48)
def test_sharded_over_two_hosts_until_rank_0_is_killed(tmp_path: Path) -> None:
    """Parts of gradients make up the whole; what needs the whole is refused; a pause opens.

    Each host has a run; commands to either are agreed upon by both.
    """
    hosts = [{"TEST_HOST": host} for host in ("here", "there")]
    with Job(tmp_path, kind="fsdp", scribe=True, environs=hosts) as job:
        applied = asker(job)
        assert [(run.host, run.world_size, len(run.ranks)) for run in job.runs] == [
            ("here", 2, 1),
            ("there", 2, 1),
        ]
        assert "1 of 2" in table([describe(job.runs[1], time.time())], time.time())
        assert same(job.outcome(commands.SetMaxNorm(2.0), rank=1)).state == "applied"
        wait_for(lambda: min(map(job.step, HALVES)) > 8)
        for command in _OF_THE_WHOLE:
            answer = job.ask(command)
            assert answer.state == "refused"
            assert "sharded" in answer.reason or "over ranks" in answer.reason
        clips(job, applied, tmp_path)
        applied(commands.ArmHold())
        applied(commands.Resume())
        (tmp_path / "poison-1").touch()  # rank 0 sees it in the next forward, by its weights
        wait_for(lambda: [*map(job.state, HALVES)] == [HELD] * 2)
        assert job.step(0) == job.step(1)
        applied(commands.Pause())
        job.processes[0].kill()
        wait_for(lambda: bool(job.words(1, "pause-ended")), 10)
        assert job.words(1, "pause-ended")[0].startswith("the job's store is gone")
        job.processes[1].wait(30)  # by its own next collective, which misses rank 0
        run = job.report()["run"]
        other = job.report(1)["run"]
    assert (run["exit"]["kind"], other["exit"]["kind"]) == ("killed", "exception")
    assert [each["rank"] for each in other["by_rank"]] == [1]


def clips(job: Job, applied: Applied, folder: Path) -> None:
    """Our clip of an update is right for the whole gradient, of which each rank holds a part."""
    at = applied(commands.Pause()) + 1
    (folder / "unclipped").touch()  # read by both before the same update
    assert applied(commands.SetClip("on", BOUND)) == at
    applied(commands.StepOnce())
    wait_for(lambda: [*map(job.step, HALVES)] == [at - 1] * 2)
    assert applied(commands.Dump([""], str(folder / "dumps"))) == at
    applied(commands.StepOnce())
    wait_for(lambda: [*map(job.step, HALVES)] == [at] * 2)
    assert applied(commands.Dump([""], str(folder / "dumps"))) == at + 1

    def dumped(step: int, rank: int) -> dict[str, torch.Tensor]:
        return load_file(folder / "dumps" / f"step-{step:06d}-rank-{rank}" / "tensors.safetensors")

    before = [dumped(at, rank) for rank in HALVES]
    grads = [value for each in before for name, value in each.items() if name.endswith(".grad")]
    total = math.sqrt(sum(float(grad.double().pow(2).sum()) for grad in grads))
    steps = [step for rank in HALVES for step in job.of(Step, rank) if step.step == at]
    assert whole_norm(step.grad_share for step in steps) == pytest.approx(total)
    assert total > BOUND and all(step.max_norm == BOUND for step in steps)
    names = [name for name, _ in replicas.small().named_parameters()]
    for rank in HALVES:
        after = dumped(at + 1, rank)
        assert sorted(name for name in after if not name.endswith(".grad")) == sorted(names)
        for name in names:
            grad = before[rank].get(f"{name}.grad", torch.zeros(0))
            change = after[name] - before[rank][name]
            torch.testing.assert_close(change, -replicas.LR * BOUND / total * grad)
