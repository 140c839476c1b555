"""Several ranks in one process: their agreeing threads over a real store, loops in threads."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from tuimon.model import commands
from tuimon.model.commands import Request
from tuimon.train.agree import agreement as agreements
from tuimon.train.agree import rounds
from tuimon.train.agree.agreement import Agreement
from tuimon.train.agree.messages import Asked, Vote
from tuimon.train.agree.promises import Agreed, Promises

numbers = itertools.count()


class Rank:
    """One rank: what it is asked for, and a loop that goes from place to place."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank = rank
        self.reason = ""  # why it refuses whatever it is asked for
        self.accepted: list[str] = []
        self.turned_down: list[tuple[str, str]] = []
        self.ended: list[tuple[str, bool]] = []
        self.done: list[tuple[int, str]] = []  # place, request
        self.woken = threading.Event()
        self.promises = Promises(lambda: None, self.woken.set)
        self.agreement = Agreement(store, rank, size, side=self, promises=self.promises)
        self.agreement.start()

    def weigh(self, request: Request, *, is_own: bool) -> str:
        return self.reason

    def accept(self, request: Request, *, is_own: bool) -> None:
        self.accepted.append(request.id)

    def turn_down(self, request: Request, reason: str) -> None:
        self.turned_down.append((request.id, reason))

    def end(self, reason: str, *, held_up: bool) -> None:
        self.ended.append((reason, held_up))

    def pass_by(self, place: int, do: Callable[[Agreed], None] | None = None) -> None:
        """What a gate does."""
        self.promises.place = place
        if not self.promises.pending:
            return
        self.promises.come_to(place)
        while True:
            while (agreed := self.promises.next()) is not None:
                self.done.append((place, agreed.request.id))
                if do is not None:
                    do(agreed)
            if self.promises.leave():
                return


@pytest.fixture
def server() -> Any:
    """The store as the job has it."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def ranks(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rank]]:
    monkeypatch.setattr(agreements, "POLL_S", 0.005)
    monkeypatch.setattr(agreements, "BUSY_POLL_S", 0.001)
    found = [Rank(client(server), rank, 3) for rank in range(3)]
    yield found
    for each in found:
        each.agreement.close("the test is over")
    assert not any(each.agreement._thread.is_alive() for each in found)


def client(server: Any) -> Any:
    return dist.TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=20))


def ask(rank: Rank, command: commands.AnyCommand | None = None) -> str:
    request = Request(f"request-{next(numbers)}", "me", command or commands.ReleaseLr())
    rank.agreement.ask(Asked(request))
    return request.id


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s, "the condition never held"
        time.sleep(0.001)


@pytest.mark.hazard(47)
def test_all_act_at_the_same_place(ranks: list[Rank]) -> None:
    """Three loops that meet in every step, as in a collective, and commands at random times."""
    barrier, count, seed = threading.Barrier(3), 40, random.Random(0)
    enough = threading.Event()

    def loop(rank: Rank, pace: random.Random) -> None:
        for step in itertools.count():
            for place in (2 * step, 2 * step + 1):
                time.sleep(pace.random() * 0.001)
                rank.pass_by(place)
            barrier.wait(20)
            if enough.is_set():
                barrier.abort()
                return

    def until_broken(rank: Rank, pace: random.Random) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            loop(rank, pace)

    threads = [
        threading.Thread(target=until_broken, args=(rank, random.Random(rank.rank)), daemon=True)
        for rank in ranks
    ]
    for thread in threads:
        thread.start()
    asked = []
    for _ in range(count):
        asked.append(ask(seed.choice(ranks)))
        time.sleep(seed.random() * 0.01)
    wait_for(lambda: all(len(rank.done) == count for rank in ranks), 30)
    enough.set()
    for thread in threads:
        thread.join(10)
    assert ranks[0].done == ranks[1].done == ranks[2].done
    assert sorted(request for _, request in ranks[0].done) == sorted(asked)


def test_one_refusal_is_that_of_all(ranks: list[Rank]) -> None:
    ranks[2].reason = "no folder"
    request = ask(ranks[1])
    wait_for(lambda: all(rank.turned_down for rank in ranks))
    assert all(rank.turned_down == [(request, "rank 2: no folder")] for rank in ranks)
    assert not any(rank.accepted or rank.promises.pending for rank in ranks)
    for rank in ranks:
        rank.reason = "no folder"
    ask(ranks[0])
    wait_for(lambda: all(len(rank.turned_down) == 2 for rank in ranks))
    assert ranks[1].turned_down[1][1] == "no folder"  # everywhere: whose it is does not matter


def test_votes_have_one_outcome(ranks: list[Rank]) -> None:
    """What a rank finds when it comes to a command decides for all."""
    said: dict[str, list[Vote]] = {}

    def vote(key: str, votes: list[Vote]) -> list[Vote]:
        said[key] = []
        threads = [
            threading.Thread(
                target=lambda r=rank, v=each: said[key].append(r.agreement.joint(key, v))
            )
            for rank, each in zip(ranks, votes, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        return said[key]

    assert vote("a", [Vote(token="5")] * 3) == [Vote(token="5")] * 3
    [reason] = {each.reason for each in vote("b", [Vote(), Vote("disk full"), Vote()])}
    assert reason == "rank 1: disk full"
    [reason] = {each.reason for each in vote("c", [Vote(token=t) for t in ("5", "5", "6")])}
    assert reason == "the ranks differ: 5 on rank 0, 5 on rank 1, 6 on rank 2"


def test_a_rank_that_is_not_watched(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreements, "POLL_S", 0.005)
    monkeypatch.setattr(agreements, "GOODBYE_S", 0.05)
    monkeypatch.setattr(rounds, "ABSENT_LIMIT_S", 0.1)
    alone = Rank(client(server), 0, 2)
    ask(alone)
    wait_for(lambda: bool(alone.turned_down))
    assert alone.turned_down[0][1] == "rank 1 made no update that tuimon watches"
    assert not alone.promises.pending
    alone.agreement.close("the test is over")


@pytest.mark.parametrize("who", [0, 2])
def test_one_leaves_and_all_stop(ranks: list[Rank], who: int) -> None:
    """A loop that waits at a pause is let go, and told who has left."""
    request = ask(ranks[0], commands.Pause())
    wait_for(lambda: all(request in rank.accepted for rank in ranks))
    ranks[who].agreement.close("the script has ended")
    wait_for(lambda: all(rank.ended for rank in ranks))
    others = [rank for rank in ranks if rank.rank != who]
    reason = "the script has ended" if who == 0 else "rank 2: the script has ended"
    assert {rank.ended[0] for rank in others} == {(reason, True)}
    assert all((request, reason) in rank.turned_down for rank in others)


@pytest.mark.parametrize("who", [0, 2])
def test_who_comes_last_does_what_the_others_have_done(ranks: list[Rank], who: int) -> None:
    """A rank stops and leaves while another has not come to the same place yet."""
    request = ask(ranks[0], commands.Stop())
    wait_for(lambda: all(request in rank.accepted for rank in ranks))
    ranks[who].pass_by(1)
    ranks[who].agreement.close("its process group has ended")
    wait_for(lambda: all(rank.ended for rank in ranks))
    for rank in ranks:
        rank.pass_by(1)
        assert rank.done == [(1, request)] and not rank.turned_down
        assert not rank.promises.pending


def test_what_is_asked_for_twice_is_one(ranks: list[Rank]) -> None:
    """A breakpoint that all ranks hit pauses them once, and for a limited time."""
    for rank in ranks:
        rank.agreement.ask(Asked(Request("break-7", "tuimon", commands.Pause()), limit_s=0.05))
    wait_for(lambda: all(len(rank.accepted) == 2 for rank in ranks))
    for rank in ranks:
        rank.pass_by(1)
        assert rank.accepted[0] == "break-7" and len(rank.done) == 2


def test_a_lease_ends_with_its_signs_of_life(ranks: list[Rank]) -> None:
    armed = Request("armed", "me", commands.ArmHold())
    ranks[2].agreement.ask(Asked(armed, lease_s=0.2))
    wait_for(lambda: all("armed" in rank.accepted for rank in ranks))
    for _ in range(20):
        ranks[1].agreement.ask(Asked(lease_s=0.2))
        time.sleep(0.02)
    assert all(rank.accepted == ["armed"] for rank in ranks)
    wait_for(lambda: all(len(rank.accepted) == 2 for rank in ranks))
