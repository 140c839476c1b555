"""What agreed commands cost a training of several ranks, and how soon they take effect.

    python -m tests.bench.bench_ranks [--ranks 1 2 4]

Printed for each number of ranks: what a step pays with nothing pending (both places of the gate,
next to the same lines without it), how often and how long the agreeing thread runs, and the steps
and milliseconds from a request to the update at which all ranks have applied it. Never a gate.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROUNDS, TIMES = 20, 2_000
COMMANDS = 20
IDLE_S = 5.0


def measure() -> dict[str, Any]:
    """In a rank, at the end of its loop: the price of the gate, and of the thread beside it."""
    from tuimon.train import monitor as monitors

    wiring = monitors._wiring
    assert wiring is not None
    observer = wiring.observer
    track = observer.roster.primary
    assert track is not None
    gate = observer.gate

    def places() -> None:
        gate.come_to_clipping(track)
        if not track.index:
            gate.promises.place = 2 * track.step + 1
        if gate.busy:
            raise RuntimeError("something is pending")

    gate_ns, bare_ns = rounds_ns(places), rounds_ns(lambda: None)
    thread = next((t for t in threading.enumerate() if t.name == "tuimon-ranks"), None)
    switches, cpu_s = (0, 0.0) if thread is None else of_thread(thread.native_id)
    time.sleep(IDLE_S)
    after, after_s = (0, 0.0) if thread is None else of_thread(thread.native_id)
    return {
        "gate_us": (statistics.median(gate_ns) - statistics.median(bare_ns)) / 1e3,
        "least_us": (min(gate_ns) - min(bare_ns)) / 1e3,
        "sleeps_per_s": (after - switches) / IDLE_S,
        "thread_frac": (after_s - cpu_s) / IDLE_S,
    }


def rounds_ns(action: Any) -> list[float]:
    """What one call took, by round."""
    found = []
    for _ in range(ROUNDS):
        began_ns = time.perf_counter_ns()
        for _ in range(TIMES):
            action()
        found.append((time.perf_counter_ns() - began_ns) / TIMES)
    return found


def of_thread(native_id: int | None) -> tuple[int, float]:
    """How often it has slept, and how long it has run."""
    task = Path(f"/proc/self/task/{native_id}")
    lines = (task / "status").read_text().splitlines()
    sleeps = next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
    return sleeps, int((task / "schedstat").read_text().split()[0]) / 1e9


def rank() -> None:
    """One rank: the training of the tests, and then what it has to tell."""
    from tests.process import replicas

    replicas.main(measure)


def delays(job: Any) -> tuple[list[int], list[float]]:
    """Steps and seconds from requests at random times to the update that they take effect at."""
    from tests.process.job import same
    from tuimon.model import commands

    steps, seconds = [], []
    pace = random.Random(0)
    for number in range(COMMANDS):
        time.sleep(0.1 + 0.2 * pace.random())
        began_s = time.monotonic()
        answer = job.ask(commands.SetMaxNorm(1.0 + number))
        state = same(job.settled(answer.id))
        seconds.append(time.monotonic() - began_s)
        steps.append((state.step or 0) - (answer.step or 0))
    return steps, seconds


def one(size: int) -> str:
    from tests.process.job import Job, wait_for

    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), size=size, script=Path(__file__))
        with job:
            wait_for(lambda: min(map(job.step, range(size))) > 20)
            steps, seconds = delays(job)
            wait_for(lambda: min(map(job.step, range(size))) > 100)
            newest = job.of(_step(), 0)[-50:]
            step_s = statistics.median(each.step_s for each in newest if each.step_s is not None)
            (Path(folder) / "end").write_text(str(max(map(job.step, range(size))) + 200))
            told = [end["measured"] for end in job.end()]
    worst = {key: max(each[key] for each in told) for key in told[0]}
    return (
        f"| {size} | {worst['gate_us']:.2f} ({worst['least_us']:.2f}) | "
        f"{worst['sleeps_per_s']:.0f} | "
        f"{100 * worst['thread_frac']:.2f} % | {1e3 * step_s:.1f} | "
        f"{statistics.median(steps):.0f} ({max(steps)}) | "
        f"{1e3 * statistics.median(seconds):.0f} ({1e3 * max(seconds):.0f}) |"
    )


def _step() -> type:
    from tuimon.model.records import Step

    return Step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    print("| ranks | gate, µs a step: median (least) | thread sleeps /s | of a core ", end="")
    print("| step, ms | steps to applied, median (worst) | ms |")
    print("|---|---|---|---|---|---|---|")
    for size in options.ranks:
        print(one(size), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 6 and not sys.argv[1].startswith("-"):
        rank()
    else:
        main()
