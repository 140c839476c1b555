"""What an autopsy costs: the re-run of a step (engine M) in multiples of the step.

    python -m tests.bench.bench_autopsy [--loops tiny,mlp,gpt] [--rounds 7]

Bare steps and re-runs take turns in one process; ratios are those of the medians. "healthy" finds
nothing and runs to the end; "ill" has a NaN in the first parameter, so that every operation of the
forward is bad; "backward" has one element near the limit of float32 in the gradient that it begins
with. "optimizer" is the trace of one step on copies; "trial" is one replay in its sandbox, with one
operation guarded, as a trial makes a few of them. Never a gate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from tests.bench.loops import LOOPS, Loop
from tuimon.train.autopsy.examination import Examination
from tuimon.train.autopsy.optimizing import trace_optimizer
from tuimon.train.autopsy.rerun import rerun_model
from tuimon.train.autopsy.scene import Call
from tuimon.train.trials.guarding import Guarded, Spot
from tuimon.train.trials.replaying import ModelStage


def batch_of(loop: Loop) -> torch.Tensor:
    """What the loop feeds its model with."""
    kept: list[torch.Tensor] = []
    hook = loop.model.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    loop.backward()
    hook.remove()
    return kept[0]


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def measure(loop: Loop, rounds: int) -> dict[str, float]:
    """Medians in seconds: the step, and each kind of re-run."""
    batch = batch_of(loop)
    shape = loop.model(batch).shape
    grads = torch.full(shape, 1e-3)
    bad = grads.clone()
    bad.view(-1)[0] = 1e38
    first = next(loop.model.parameters())
    names = {id(param): name for name, param in loop.model.named_parameters()}
    found: dict[str, list[float]] = {}

    def rerun(seed: torch.Tensor, loss_bad: bool) -> Examination:
        return rerun_model(loop.model, (batch,), output_grads=[seed], loss_bad=loss_bad)

    def ill() -> None:
        with torch.no_grad():
            kept = first.view(-1)[0].clone()
            first.view(-1)[0] = torch.nan
        rerun(grads, True)
        with torch.no_grad():
            first.view(-1)[0] = kept

    call = Call(loop.model, (batch,), {})
    output = loop.model(batch)
    call.listen([output], lambda _: None)
    output.backward(grads)
    stage = ModelStage(call, [("", loop.model)], backward=True)
    guarded = Guarded(Spot(frozenset(("addmm", "div"))), "div-zero")

    kinds: dict[str, Callable[[], object]] = {
        "step": loop.step,
        "healthy": lambda: rerun(grads, False),
        "ill": ill,
        "backward": lambda: rerun(bad, False),
        "optimizer": lambda: trace_optimizer(loop.optimizer, names=names),
        "trial": lambda: stage.play(guarded),
    }
    for name, work in kinds.items():  # the first of each is not counted
        work()
        found[name] = []
    for _ in range(rounds):
        for name, work in kinds.items():
            found[name].append(seconds(work))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default="tiny,mlp,gpt")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = ("healthy", "ill", "backward", "optimizer", "trial")
    print(f"{'loop':6} {'step ms':>9} " + " ".join(f"{name:>9}" for name in names))
    for name in options.loops.split(","):
        torch.manual_seed(0)
        times = measure(LOOPS[name](False), options.rounds)
        step_s = times.pop("step")
        ratios = " ".join(f"{value / step_s:>8.2f}x" for value in times.values())
        print(f"{name:6} {step_s * 1e3:9.2f} {ratios}", flush=True)


if __name__ == "__main__":
    main()
