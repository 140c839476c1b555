"""Rank 0's part: one command after another is proposed, acknowledged by all, and settled.

Used by the agreeing thread of rank 0 only.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable

from tuimon.model import commands
from tuimon.model.commands import Request
from tuimon.train.agree.link import Link
from tuimon.train.agree.messages import Ack, Asked, Outcome, Proposal, Vote

ABSENT_LIMIT_S = 10.0  # for the first update of all ranks after that of rank 0
ACK_LIMIT_S = 15.0  # threads answer within tenths of a second; one may wait for the GIL for long
VOTE_LIMIT_S = 60.0  # a rank may write a large file before it comes to the same update
MAX_KNOWN = 4096


class Rounds:
    """What is asked for, what is being agreed upon, and what ends by itself.

    Attributes:
        number: of the round that comes next.
    """

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self.number = 1
        self._link = link
        self._clock = clock
        self._asked: deque[Asked] = deque()
        self._known: OrderedDict[str, None] = OrderedDict()  # what several ranks ask for is one
        self._heard = 0  # of those that other ranks have asked for
        self._open: Asked | None = None
        self._votes: dict[str, float] = {}  # what is voted about -> when it is given up
        self._until_s = 0.0
        self._all_here = False
        self._absent_until_s: float | None = None
        self._pause_until_s: float | None = None
        self._lease_until_s: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for what comes next."""
        return bool(self._open or self._asked or self._votes)

    @property
    def is_open(self) -> bool:
        """Whether a round has begun and is not over."""
        return self._open is not None

    def ask(self, asked: Asked) -> None:
        """Let all ranks agree upon this when its turn comes."""
        if asked.request is None and asked.lease_s:
            if self._lease_until_s is not None:
                self._lease_until_s = self._clock() + asked.lease_s
        elif asked.request is not None and asked.request.id not in self._known:
            self._known[asked.request.id] = None
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            self._asked.append(asked)

    def listen(self) -> str:
        """Take in what other ranks have asked for; why agreements end, or ""."""
        while self._link.has([f"asks/{self._heard + 1}"]):
            self._heard += 1
            asked = self._link.get(f"asks/{self._heard}", Asked)
            if asked.leaving:
                return asked.leaving
            self.ask(asked)
        return ""

    def propose(self) -> None:
        """Begin the next round, unless one is open."""
        self._expire()
        if self._open is not None or not self._asked:
            return
        absent = self._absent()
        if absent is None:
            return
        self._open = asked = self._asked.popleft()
        self._until_s = self._clock() + ACK_LIMIT_S
        if absent:  # told first: whoever reads the proposal must not wait for anybody
            self._link.put(f"outcome/{self.number}", Outcome(reason=absent))
        self._link.put(f"round/{self.number}", Proposal(asked.request, asked.held))
        if absent:
            self._open = None
            self.number += 1

    def _absent(self) -> str | None:
        """Who does not take part; "" once all have come, None while that is not decided."""
        if self._all_here:
            return ""
        keys = [f"here/{rank}" for rank in range(self._link.size)]
        if self._link.has(keys):
            self._all_here = True
            return ""
        now_s = self._clock()
        if self._absent_until_s is None:
            self._absent_until_s = now_s + ABSENT_LIMIT_S
        if now_s < self._absent_until_s:
            return None
        missing = [rank for rank, key in enumerate(keys) if not self._link.has([key])]
        return f"{_ranks(missing)} made no update that tuimon watches"

    def settle(self) -> None:
        """End the open round once all have answered, or not in time."""
        if self._open is None:
            return
        keys = [f"ack/{self.number}/{rank}" for rank in range(self._link.size)]
        if self._link.has(keys):
            outcome = _joint([self._link.get(key, Ack) for key in keys])
        elif self._clock() > self._until_s:
            silent = [rank for rank, key in enumerate(keys) if not self._link.has([key])]
            outcome = Outcome(reason=f"{_ranks(silent)} did not answer within {ACK_LIMIT_S:g} s")
        else:
            return
        self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        asked, self._open = self._open, None
        self._link.put(f"outcome/{self.number}", outcome)
        self.number += 1
        if asked is not None and not outcome.reason:
            self._note(asked)

    def collect(self, key: str) -> None:
        """From now on, count the votes about something that all have come to."""
        self._votes[key] = self._clock() + VOTE_LIMIT_S

    def count_votes(self) -> None:
        """Tell the verdict where all have voted, or not in time."""
        for key, until_s in list(self._votes.items()):
            keys = [f"vote/{key}/{rank}" for rank in range(self._link.size)]
            if self._link.has(keys):
                verdict = _verdict([self._link.get(each, Vote) for each in keys])
            elif self._clock() > until_s:
                late = [rank for rank, each in enumerate(keys) if not self._link.has([each])]
                verdict = Vote(f"{_ranks(late)} did not come to it within {VOTE_LIMIT_S:g} s")
            else:
                continue
            del self._votes[key]
            self._link.put(f"verdict/{key}", verdict)

    def close(self, reason: str) -> None:
        """End all agreements; what is open is refused."""
        for key in self._votes:
            self._link.put(f"verdict/{key}", Vote(reason))
        self._votes.clear()
        if self._open is not None:
            self._end(Outcome(reason=reason))
        self._link.put(f"round/{self.number}", Proposal(ending=reason))

    # --- what ends by itself ----------------------------------------------------------------------

    def _note(self, asked: Asked) -> None:
        """A command was agreed upon: it may end by itself, or end what would have."""
        request = asked.request
        command = None if request is None else request.command
        if isinstance(command, commands.ArmHold | commands.DisarmHold):
            self._lease_until_s = self._clock() + asked.lease_s if asked.lease_s else None
        elif isinstance(command, commands.SkipUpdate | commands.RollBack | _OF_PAUSES):
            self._pause_until_s = self._clock() + asked.limit_s if asked.limit_s else None

    def _expire(self) -> None:
        now_s = self._clock()
        if self._pause_until_s is not None and now_s > self._pause_until_s:
            self._pause_until_s = None
            self._asked.append(Asked(_own(commands.Resume(), "nobody decided in time")))
        if self._lease_until_s is not None and now_s > self._lease_until_s:
            self._lease_until_s = None
            self._asked.append(Asked(_own(commands.DisarmHold(), "the last viewer has left")))


_OF_PAUSES = commands.Pause | commands.Resume | commands.StepOnce


def _own(command: commands.AnyCommand, why: str) -> Request:
    return Request(uuid.uuid4().hex, f"tuimon ({why})", command, time.time())


def _joint(acks: list[Ack]) -> Outcome:
    refusals = {rank: ack.reason for rank, ack in enumerate(acks) if ack.reason}
    return Outcome(max(ack.place for ack in acks), _reason(refusals, len(acks)))


def _verdict(votes: list[Vote]) -> Vote:
    refusals = {rank: vote.reason for rank, vote in enumerate(votes) if vote.reason}
    if refusals:
        return Vote(_reason(refusals, len(votes)))
    tokens = [vote.token for vote in votes]
    if len(set(tokens)) > 1:
        return Vote(
            f"the ranks differ: {', '.join(f'{t} on rank {r}' for r, t in enumerate(tokens))}"
        )
    return Vote(token=tokens[0])


def _reason(refusals: dict[int, str], size: int) -> str:
    """One reason for all: whose it is, where it is not that of every rank."""
    if not refusals:
        return ""
    rank, reason = next(iter(refusals.items()))
    everywhere = len(refusals) == size and len(set(refusals.values())) == 1
    return reason if everywhere else f"rank {rank}: {reason}"


def _ranks(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {listed}"
