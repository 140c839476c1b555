"""One rank's thread of agreement, and what the training thread asks of it.

The thread runs no torch operation: it polls the job's store, whose client releases the GIL, and
sleeps in between. When the store or a rank is gone it gives up, and nothing is held any longer.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Protocol

from tuimon.model.commands import Request
from tuimon.train.agree.link import Link, open_link
from tuimon.train.agree.messages import Ack, Asked, Outcome, Proposal, Vote
from tuimon.train.agree.peers import Peers
from tuimon.train.agree.promises import WAIT_SLICE_S, Agreed, Promises
from tuimon.train.agree.rounds import Rounds

POLL_S = 0.1  # with nothing to agree upon: the thread takes the GIL twice a round
BUSY_POLL_S = 0.02
HELD_POLL_S = 0.05
RANKS_PER_POLL = 64  # one thread serves the store: more ranks poll less often
GOODBYE_S = 3.0  # for the others to hear the newest outcome of a store that goes with this process


class Side(Protocol):
    """What an agreement needs of the rank that it is made for. Called by its thread."""

    def weigh(self, request: Request, *, is_own: bool) -> str:
        """Why this rank cannot carry out a command; "" when it can."""

    def accept(self, request: Request, *, is_own: bool) -> None:
        """All ranks will carry it out; `is_own` where it was asked for here."""

    def turn_down(self, request: Request, reason: str) -> None:
        """No rank will carry it out."""

    def end(self, reason: str, *, held_up: bool) -> None:
        """Nothing is agreed upon any more; `held_up` where somebody was waiting."""


class Agreement:
    """Starts with the first update of a rank, ends with its process group.

    Attributes:
        rank: of this process.
        promises: what binds the training thread.
        over: why nothing is agreed upon any more; "" while something can be.
    """

    def __init__(self, store: Any, rank: int, size: int, *, side: Side, promises: Promises) -> None:
        self.rank = rank
        self.size = size
        self.promises = promises
        self.over = ""
        self._pid = os.getpid()
        self._store: Any = store
        self._side = side
        self._wake = threading.Event()
        self._closing = ""
        self._asked: deque[Asked] = deque()
        self._mine: dict[str, Request] = {}  # asked for here and not settled
        self._rounds: Rounds | None = None
        self._number = 1
        self._round: Proposal | None = None
        self._promised = 0
        self._votes: deque[tuple[str, Vote]] = deque()
        self._awaited: str | None = None
        self._verdict: Vote | None = None
        self._judged = threading.Condition()
        self._idle_s = POLL_S * max(1.0, size / RANKS_PER_POLL)
        # Not a daemon: a thread inside the store's client would abort an interpreter that ends.
        self._thread = threading.Thread(target=self._run, name="tuimon-ranks", daemon=False)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            # Threads are waited for before anything else that ends with the interpreter.
            with contextlib.suppress(RuntimeError):  # the interpreter is ending already
                register(_ends, weakref.ref(self))

    @property
    def waiting(self) -> int:
        """Commands that were asked for here and are not settled."""
        return len(self._mine)

    # --- for other threads ------------------------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """Let all ranks agree upon something."""
        if asked.request is not None and not asked.held and not asked.limit_s:
            self._mine[asked.request.id] = asked.request
        self._asked.append(asked)
        self._wake.set()

    def drop(self, request: Request) -> None:
        """Turn down what was asked for while agreements ended, unless that has been done."""
        if self._mine.pop(request.id, None) is not None:
            self._side.turn_down(request, self.over)

    def joint(self, key: str, vote: Vote) -> Vote:
        """What all ranks together say to something that each of them has come to.

        The training thread waits here, in slices that let signals through.

        Args:
            key: the same on all ranks, and used once.
            vote: of this one.
        """
        with self._judged:
            self._awaited, self._verdict = key, None
            self._votes.append((key, vote))
            self._wake.set()
            while self._verdict is None and not self.over:
                self._judged.wait(WAIT_SLICE_S)
            self._awaited = None
            return self._verdict or Vote(self.over)

    def close(self, reason: str) -> None:
        """Agree upon nothing any more, tell the others, and wait until that is done."""
        if os.getpid() != self._pid:
            return
        self._closing = self._closing or reason
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(2 * GOODBYE_S)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        reason = "the job's store cannot be reached"
        try:
            link = open_link(self._store, self.rank, self.size)
            peers = Peers(link)
            self._store = None  # it belongs to the job, and must end with it
            self._rounds = Rounds(link) if self.rank == 0 else None
            peers.come()
            reason = "the job's store is gone"
            ended = ""
            while not ended and self._is_wanted():
                ended = self._turn(link) or peers.look(waits=self._waits())
                self._wake.wait(0.0 if ended else self._pause_s())
                self._wake.clear()
            reason = ended or self._closing or "the script has ended"
            self._give_up(reason)
            self._say_goodbye(link, reason)
        except Exception as error:
            self._give_up(f"{reason} ({type(error).__name__})")
        finally:
            self._store = None

    def _is_wanted(self) -> bool:
        return not self._closing and threading.main_thread().is_alive()

    def _waits(self) -> bool:
        """Whether somebody here depends on the others."""
        return bool(
            self._round
            or self._mine
            or self._awaited is not None
            or self.promises.holds_up
            or (self._rounds and self._rounds.is_busy)
        )

    def _pause_s(self) -> float:
        busy = self._round or self._awaited is not None or (self._rounds and self._rounds.is_busy)
        if busy or self._mine:
            return BUSY_POLL_S
        return HELD_POLL_S if self.promises.holds_up else self._idle_s

    def _turn(self, link: Link) -> str:
        """Do what can be done without waiting; why agreements end, or ""."""
        rounds = self._rounds
        while self._asked:
            asked = self._asked.popleft()
            if rounds is not None:
                rounds.ask(asked)
            else:
                link.append("asks", asked)
        if rounds is not None:
            if ending := rounds.listen():
                return ending
            rounds.propose()
        ending = self._take_part(link)
        if rounds is not None:
            rounds.settle()
        self._hear(link)
        self._vote(link)
        return ending

    def _take_part(self, link: Link) -> str:
        """Promise where a round has begun; why agreements end, or ""."""
        if self._round is not None:
            return ""
        if self._rounds is not None:
            began = self._rounds.number > self._number or self._rounds.is_open
        else:
            began = link.has([f"round/{self._number}"])
        if not began:
            return ""
        proposal = link.get(f"round/{self._number}", Proposal)
        if proposal.ending:
            return proposal.ending
        self._round = proposal
        if link.has([f"outcome/{self._number}"]):
            return ""
        self._promised = self.promises.promise()
        request, reason = proposal.request, ""
        if request is not None and not proposal.held:
            reason = self._side.weigh(request, is_own=request.id in self._mine)
        link.put(f"ack/{self._number}/{self.rank}", Ack(self._promised, reason))
        return ""

    def _hear(self, link: Link) -> None:
        """Keep the promise as the round ends."""
        proposal, number = self._round, self._number
        if proposal is None or not link.has([f"outcome/{number}"]):
            return
        outcome = link.get(f"outcome/{number}", Outcome)
        self._round, self._number = None, number + 1
        request = proposal.request
        if request is not None:
            is_own = self._mine.pop(request.id, None) is not None
            if proposal.held:
                pass  # nobody has asked for it: there is nobody to be told
            elif outcome.reason:
                self._side.turn_down(request, outcome.reason)
            else:
                self._side.accept(request, is_own=is_own)
        agreed = None
        if request is not None and not outcome.reason:
            agreed = Agreed(number, outcome.place, request, proposal.held)
        self.promises.settle(agreed)

    def _vote(self, link: Link) -> None:
        while self._votes:
            key, vote = self._votes.popleft()
            link.put(f"vote/{key}/{self.rank}", vote)
            if self._rounds is not None:
                self._rounds.collect(key)
        if self._rounds is not None:
            self._rounds.count_votes()
        awaited = self._awaited
        if awaited is None or not link.has([f"verdict/{awaited}"]):
            return
        verdict = link.get(f"verdict/{awaited}", Vote)
        with self._judged:
            self._verdict = verdict
            self._judged.notify_all()

    # --- the end ----------------------------------------------------------------------------------

    def _give_up(self, reason: str) -> None:
        held_up = self.promises.holds_up or self._awaited is not None
        self.over = reason
        with self._judged:
            self._judged.notify_all()
        given_up = self.promises.give_up()
        lost = {each.request.id: each.request for each in given_up if not each.held}
        proposal, self._round = self._round, None
        if proposal is not None and proposal.request is not None and not proposal.held:
            lost[proposal.request.id] = proposal.request
        lost |= self._mine
        self._mine = {}
        for request in lost.values():
            with contextlib.suppress(Exception):
                self._side.turn_down(request, reason)
        with contextlib.suppress(Exception):
            self._side.end(reason, held_up=held_up)

    def _say_goodbye(self, link: Link, reason: str) -> None:
        """Let the others stop asking before the store may go; they need nothing from us then."""
        link.set(f"gone/{self.rank}", "1")
        rounds = self._rounds
        if rounds is None:
            link.append("asks", Asked(leaving=f"rank {self.rank}: {reason}"))
            return
        rounds.close(reason)
        until_s = time.monotonic() + GOODBYE_S
        here = [rank for rank in range(1, self.size) if link.has([f"here/{rank}"])]
        others = [f"gone/{rank}" for rank in here]
        while not link.has(others) and time.monotonic() < until_s:
            time.sleep(BUSY_POLL_S)


def _ends(reference: weakref.ref[Agreement]) -> None:
    """The interpreter is about to wait for our thread."""
    agreement = reference()
    # A forked child ends too, and has none of our threads.
    if agreement is not None and os.getpid() == agreement._pid:
        agreement._closing = agreement._closing or "the script has ended"
        agreement._wake.set()
