"""Commands at random times to ranks that keep no time, and processes that are killed in a pause.

    python -m tests.bench.stress_ranks [--ranks 4] [--rounds 60] [--launchers torchrun spawn hand]

For each way of starting the ranks: commands at random times; then a pause in which rank 0, the last
rank and the launcher is killed, each in a training of its own. Ends with status 1 where two ranks
have carried out anything differently, where weights differ at the end, where a rank that lives
stays behind in a pause that nobody is left to end, or where the report does not name the one that
was killed.
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
FREED_S = 30.0  # for all that live to be let go, or to have ended
PACE, DRAW = random.Random(os.getpid()), replicas.draw


def jittered() -> None:
    """Ranks each of whose steps takes as long as it likes."""
    replicas.draw = late
    replicas.main()


def late(draws: Any) -> Any:
    time.sleep(PACE.random() * JITTER_S)
    return DRAW(draws)


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


def stress(size: int, rounds: int, launcher: str, kind: str = "ddp") -> bool:
    """Whether all ranks have done the same, and are the same at the end."""
    seed, asked, paused = random.Random(1), [], False
    with tempfile.TemporaryDirectory() as folder, beside(folder, size, launcher, kind) as job:
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
    print(
        f"{named(size, launcher)}: {len(asked)} commands, {settled} settled, all the same: {same}"
    )
    return same and settled == len(asked)


def told(job: Job, rank: int, asked: list[str]) -> list[tuple[Any, ...]]:
    newest: dict[str, CommandState] = {}
    for state in job.of(CommandState, rank):
        newest[state.id] = state
    states = [newest[each] for each in asked]
    return [(s.id, s.state, s.step, s.old, s.new, s.reason) for s in states]


def beside(folder: str, size: int, launcher: str, kind: str = "ddp") -> Job:
    return Job(
        Path(folder),
        size=size,
        kind=kind,
        script=Path(__file__),
        launcher="" if launcher == "hand" else launcher,
        scribe=True,
    )


def named(size: int, launcher: str) -> str:
    return f"{size} ranks of {launcher}"


def killed(size: int, launcher: str, victim: int | None) -> bool:
    """Whether all others go on or end after one was killed while they were paused.

    Args:
        victim: a rank; None for the launcher.
    """
    with tempfile.TemporaryDirectory() as folder, beside(folder, size, launcher) as job:
        wait_for(lambda: min(map(job.step, range(size))) > 10)
        job.outcome(commands.Pause())
        if victim is None:
            job.processes[0].kill()
        else:
            job.kill_rank(victim)
        began_s = time.monotonic()
        others = [rank for rank in range(size) if rank != victim]

        def is_free(rank: int) -> bool:
            return bool(job.words(rank, "pause-ended")) or not job.lives(rank)

        wait_for(lambda: all(map(is_free, others)), FREED_S)
        took_s = time.monotonic() - began_s
        ends = {word for rank in others for word in job.words(rank, "pause-ended")} or "ended"
        if victim is None and launcher == "torchrun":  # its ranks train on, as they would alone
            for rank in others:
                job.kill_rank(rank)
        report = job.report()["run"]["exit"]
    who = "launcher" if victim is None else f"rank {victim}"
    print(f"{named(size, launcher)}, {who} killed: free after {took_s:.1f} s; {ends}; {report}")
    return victim is None or report["detail"].startswith(who)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--launchers", nargs="+", default=["torchrun", "spawn", "hand"])
    options = parser.parse_args()
    size = options.ranks
    fine = stress(2, options.rounds, "hand", "accumulated")
    for launcher in options.launchers:
        fine = stress(size, options.rounds, launcher) and fine
        fine = killed(size, launcher, 0) and fine
        fine = killed(size, launcher, size - 1) and fine
        if launcher != "hand":
            fine = killed(size, launcher, None) and fine
    return 0 if fine else 1


if __name__ == "__mp_main__":  # a rank that was spawned
    replicas.draw = late
if __name__ == "__main__":
    if len(sys.argv) > 6 and not sys.argv[1].startswith("-"):
        jittered()
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.exit(main())
