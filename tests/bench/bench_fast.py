"""Whether a training of two thousand steps a second is watched without losing its extremes.

    python -m tests.bench.bench_fast [--steps 100000] [--rate 2000]

A real loop of PyTorch, watched, with losses of one step that are a thousand times the others. One
viewer is there from the start and looks at 10 Hz, another one comes when all is over and knows what
was kept. Each is asked for every such step in windows of many lengths, which begin, end or have
their middle there. Printed are the steps a second that the loop reached, alone and watched, what
each viewer took in and lost, and in how many windows the step stands out in its column or one next
to it. Never a gate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from tuimon.feed import registry
from tuimon.view.frame import Frame
from tuimon.view.session import Session, watch_run

FRAME_S = 0.1
COLUMNS = 200  # dots of a chart
SPANS = (10, 100, 1_000, 10_000, 100_000)
USUAL, EXTREME = 2.0, 1_000.0
PATIENCE_S = 60.0


def extremes(steps: int) -> list[int]:
    """The steps whose loss is not like the others."""
    return [steps * share // 9 + share for share in range(1, 9)]


def train(steps: int, rate: float, *, watched: bool) -> tuple[float, float]:
    """The loop; steps a second of the clock, and those that a whole core would make.

    It never moves its weights, so that losses stay as they are.
    """
    import torch

    import tuimon

    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch, odd = torch.randn(4, 8), set(extremes(steps))
    if watched:
        tuimon.watch(model, optimizer)
    begun_s, used_s = time.perf_counter(), 0.0
    for step in range(steps):
        since_s = time.thread_time()
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss = loss / loss.detach() * (EXTREME if step in odd else USUAL)
        loss.backward()
        optimizer.step()
        used_s += time.thread_time() - since_s
        while rate and time.perf_counter() < begun_s + step / rate:
            pass  # a sleep is too coarse
    return steps / (time.perf_counter() - begun_s), steps / used_s


def windows(step: int, steps: int) -> Iterator[tuple[int, int]]:
    """Those in which the step lies: at the start, in the middle and at the end."""
    for span in SPANS:
        for ahead in (0, span // 2, span - 1):
            if step >= ahead and step - ahead + span <= max(steps, span):
                yield step - ahead, step - ahead + span
    yield 0, steps


def stands_out(frame: Frame, step: int, window: tuple[int, int]) -> bool:
    """Whether its column of the chart, or one next to it, reaches up to it."""
    start, end = window
    high = frame.series["loss"].envelope(start, end, COLUMNS).high
    column = (step - start) * COLUMNS // (end - start)
    near = high[max(0, column - 1) : column + 2 + COLUMNS // (end - start)]
    return bool((near > EXTREME / 2).any())


def row(who: str, frame: Frame, steps: int) -> str:
    """What a viewer took in, and what can be seen of it."""
    asked = [(step, window) for step in extremes(steps) for window in windows(step, steps)]
    seen = sum(stands_out(frame, step, window) for step, window in asked)
    lost = ", ".join(f"{count:,} {reason}" for reason, count in frame.lost.items()) or "nothing"
    return f"| {who} | {frame.series['loss'].count:,} | {lost} | {seen} of {len(asked)} |"


def until_last(session: Session, steps: int, training: subprocess.Popen[str]) -> Frame:
    """Look at 10 Hz until the last step is there."""
    ended_s = None
    while True:
        begun_s = time.monotonic()
        frame = session.tick()
        if training.poll() is not None:
            ended_s = ended_s or begun_s
        if frame.step == steps - 1 or (ended_s and begun_s - ended_s > PATIENCE_S):
            return frame
        time.sleep(max(0.0, begun_s + FRAME_S - time.monotonic()))


def looked_at(steps: int, rate: float) -> None:
    """The table."""
    words = [sys.executable, "-m", "tests.bench.bench_fast", f"--steps={steps}", f"--rate={rate}"]
    alone = subprocess.run([*words, "--train=alone"], text=True, capture_output=True, check=True)
    pipe = subprocess.PIPE
    with subprocess.Popen([*words, "--train=watched"], stdout=pipe, text=True) as training:
        try:
            while not (runs := registry.list_runs()):
                assert training.poll() is None, "the training ended at once"
                time.sleep(0.01)
            first = watch_run(runs[0])
            frame = until_last(first, steps, training)
            assert training.stdout is not None
            reached = training.stdout.readline()
            training.wait(PATIENCE_S)
        finally:
            training.kill()
    print(
        f"{steps:,} steps\n\n| loop | steps a second | steps a second of its own processor time |"
    )
    print(f"|---|---|---|\n| alone | {alone.stdout.strip()} |\n| watched | {reached.strip()} |\n")
    print("| viewer | losses known | lost | windows in which an extreme stands out |")
    print("|---|---|---|---|")
    print(row("from the start", frame, steps))
    first.close()
    late = watch_run(runs[0])
    print(row("at the end", until_last(late, steps, training), steps))
    late.close()


def main() -> None:
    """Train, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=2_000.0, help="steps a second; 0: all it can")
    parser.add_argument("--train", choices=["alone", "watched"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        rates = train(options.steps, options.rate, watched=options.train == "watched")
        print(" | ".join(f"{each:,.0f}" for each in rates), flush=True)
        return
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"TUIMON_DIR": f"{home}/runs", "XDG_STATE_HOME": f"{home}/state"}
        os.environ["OMP_NUM_THREADS"] = "1"
        looked_at(options.steps, options.rate)


if __name__ == "__main__":
    main()
