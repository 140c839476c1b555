"""Commands at random times to four ranks that keep no time, and ranks that are killed in a pause.

    python -m tests.bench.stress_ranks [--ranks 4] [--rounds 60]

Ends with status 1 where two ranks have carried out anything differently, where weights differ at
the end, or where a rank stays behind in a pause that nobody is left to end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.process import replicas
from tests.process.job import Job, wait_for
from tuimon.model import commands
from tuimon.model.commands import AnyCommand
from tuimon.model.records import CommandState

JITTER_S = 0.003


def jittered() -> None:
    """One rank, each of whose steps takes as long as it likes."""
    pace = random.Random(int(sys.argv[1]))
    draw = replicas.draw

    def late(draws: Any) -> Any:
        time.sleep(pace.random() * JITTER_S)
        return draw(draws)

    replicas.draw = late
    replicas.main()


def any_command(seed: random.Random, paused: bool) -> AnyCommand:
    changes: list[AnyCommand] = [
        commands.SetClip("on", 0.5),
        commands.SetClip("off"),
        commands.SetClip("user"),
        commands.SetMaxNorm(seed.choice([0.1, 0.2, 0.4])),
        commands.ScaleLr(seed.choice([0.5, 2.0])),
        commands.ReleaseLr(),
        commands.SkipUpdate(seed.randint(1, 3)),
        commands.RollBack(),
        commands.Undo(),
    ]
    if paused:
        changes += [commands.StepOnce(seed.randint(1, 4))] * 3 + [commands.Resume()] * 3
    else:
        changes += [commands.Pause()] * 3
    return seed.choice(changes)


def stress(size: int, rounds: int) -> bool:
    """Whether all ranks have done the same, and are the same at the end."""
    seed, asked, paused = random.Random(1), [], False
    with tempfile.TemporaryDirectory() as folder, beside(folder, size) as job:
        wait_for(lambda: min(map(job.step, range(size))) > 10)
        for _ in range(rounds):
            command = any_command(seed, paused)
            answer = job.ask(command)
            if answer.state == "accepted":
                asked.append(answer.id)
                paused = isinstance(command, commands.Pause | commands.StepOnce) or (
                    paused and not isinstance(command, commands.Resume)
                )
            time.sleep(seed.random() * 0.1)
        job.outcome(commands.Resume())
        asked.append(job.outcome(commands.Stop())[0].id)
        ends = job.end()
        done = [told(job, rank, asked) for rank in range(size)]
    same = all(each == done[0] for each in done) and all(each == ends[0] for each in ends)
    settled = sum(entry[1] != "accepted" for entry in done[0])
    print(f"{size} ranks: {len(asked)} commands, {settled} settled, all the same: {same}")
    return same and settled == len(asked)


def told(job: Job, rank: int, asked: list[str]) -> list[tuple[Any, ...]]:
    newest: dict[str, CommandState] = {}
    for state in job.of(CommandState, rank):
        newest[state.id] = state
    states = [newest[each] for each in asked]
    return [(s.id, s.state, s.step, s.old, s.new, s.reason) for s in states]


def beside(folder: str, size: int) -> Job:
    return Job(Path(folder), size=size, script=Path(__file__))


def killed(size: int, victim: int) -> bool:
    """Whether all others go on after a rank was killed while they were paused."""
    with tempfile.TemporaryDirectory() as folder, beside(folder, size) as job:
        wait_for(lambda: min(map(job.step, range(size))) > 10)
        job.outcome(commands.Pause())
        job.processes[victim].kill()
        began_s = time.monotonic()
        others = [rank for rank in range(size) if rank != victim]
        wait_for(lambda: all(job.words(rank, "pause-ended") for rank in others), 30)
        took_s = time.monotonic() - began_s
        reasons = {job.words(rank, "pause-ended")[0] for rank in others}
        for rank in others:
            job.processes[rank].wait(120)
    print(f"{size} ranks, rank {victim} killed: freed after {took_s:.1f} s; {reasons}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    fine = stress(options.ranks, options.rounds)
    fine = killed(options.ranks, 1) and killed(options.ranks, 0) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    if len(sys.argv) > 6:
        jittered()
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
