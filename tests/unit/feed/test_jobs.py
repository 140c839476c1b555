"""Ranks of one job join one run; whoever only looks like a rank makes a run of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from tuimon.feed import jobs, registry
from tuimon.feed.jobs import Place
from tuimon.feed.ring import RingWriter

JOINS = """
import json, sys
from tuimon.feed.jobs import Place, enter
place = Place(int(sys.argv[1]), 8, sys.argv[2], ranks_here=8)
sys.stdin.readline()
info, me, is_new = enter(place, name="n", argv=["train.py"])
print(json.dumps([info.id, me.rank, is_new]), flush=True)
sys.stdin.readline()
"""


def come(rank: int, job: str = "job", **more: object) -> tuple[registry.RunInfo, bool]:
    place = Place(rank, 2, job, **more)  # type: ignore[arg-type]
    info, me, is_new = jobs.enter(place, name="n", argv=["train.py"])
    assert me.rank == rank
    return info, is_new


def test_ranks_that_come_at_the_same_moment_are_one_run() -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOINS, str(rank), "job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    for each in ranks:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    told = [json.loads(each.stdout.readline()) for each in ranks if each.stdout is not None]
    (run,) = registry.list_runs()
    for each in ranks:
        each.communicate("\n")
    assert {each[0] for each in told} == {run.id} and sum(each[2] for each in told) == 1
    assert [each.rank for each in run.ranks] == [0, 1, 2, 3]


def test_a_process_that_cannot_be_watched_leaves_no_run() -> None:
    alone, me, _ = jobs.enter(Place(), name="n", argv=["train.py"])
    jobs.leave(alone, me)
    assert registry.list_runs() == [] and not alone.path.exists()

    first, _ = come(0)
    both, _ = come(1)
    jobs.leave(first, first.ranks[0])
    (left,) = registry.list_runs()
    assert (left.id, [each.rank for each in left.ranks]) == (first.id, [1])
    jobs.leave(both, left.ranks[0])
    assert registry.list_runs() == []


def test_a_spawned_process_that_cannot_be_watched_leaves_the_run_to_who_spawned_it() -> None:
    launcher, own, _ = jobs.enter(Place(), name="n", argv=["train.py"])
    RingWriter.create(launcher.path / own.ring, 1 << 16, start_ticks=own.start_ticks)
    spawned, _ = come(0, launcher=launcher.folder)
    assert spawned.id == launcher.id and spawned.launcher is not None
    jobs.leave(spawned, spawned.ranks[0])
    (left,) = registry.list_runs()
    assert (left.ranks, left.launcher, left.job) == ([own], None, "")


def test_a_rank_that_is_taken_belongs_to_another_training() -> None:
    """Two trainings started by one shell with a stale RANK, or a second attempt of a job."""
    first, _ = come(0)
    again, is_new = come(0)
    assert is_new and again.id != first.id
    joined, is_new = come(1)
    assert (joined.id, is_new) == (again.id, False), "the newest one is meant"


def test_ranks_of_other_jobs_stay_apart() -> None:
    assert come(0)[0].id != come(1, "another")[0].id
    assert come(1, "")[1], "who knows no job is alone"


@pytest.mark.parametrize("one_attempt", [False, True])
def test_a_late_rank_joins_dead_ones_only_where_they_are_surely_of_its_attempt(
    one_attempt: bool,
) -> None:
    info, _ = come(0)
    dead = [msgspec.structs.replace(each, pid=2**22 + 1) for each in info.ranks]
    registry.save(msgspec.structs.replace(info, ranks=dead))
    late, is_new = come(1, one_attempt=one_attempt)
    assert is_new is not one_attempt and (late.id == info.id) is one_attempt


def test_a_run_that_has_been_closed_takes_nobody() -> None:
    info, _ = come(0)
    joined, _ = come(1)
    assert jobs.close(info) is None, "somebody has joined meanwhile"
    closed = jobs.close(joined)
    assert closed is not None and closed.closed
    registry.save(msgspec.structs.replace(closed, ranks=closed.ranks[:1]))
    assert come(1, one_attempt=True)[1]


def test_spawned_ranks_take_over_the_run_of_a_launcher_that_trains_nothing() -> None:
    parent = registry.create_run(name="spawns", argv=["spawns.py"])
    ring = RingWriter.create(parent.ring(), 1 << 20)
    joined, is_new = come(1, launcher=parent.folder)
    assert not is_new and joined.id == parent.id and joined.launcher == parent.ranks[0]
    assert come(0, launcher=parent.folder)[0].world_size == 2
    assert come(0, "a second group", launcher=parent.folder)[1]
    trains = registry.create_run(name="trains", argv=["trains.py"])
    ring = RingWriter.create(trains.ring(), 1 << 20)
    ring.set_state(0, 3)
    assert come(0, "third", launcher=trains.folder)[1], "its own training is not theirs"
