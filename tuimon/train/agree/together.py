"""What the gate and the control thread know of the other ranks.

Without any, or before the first update, every method does nothing or gives the answer of one rank
alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from tuimon.model import commands
from tuimon.model.commands import Request
from tuimon.train.agree.agreement import Agreement
from tuimon.train.agree.layout import Layout
from tuimon.train.agree.link import expects_others, job
from tuimon.train.agree.messages import Asked, Vote
from tuimon.train.agree.promises import Promises

if TYPE_CHECKING:
    from tuimon.train.control.gate import Gate
    from tuimon.train.observer import Observer

_LATE = "this process joined the others after its first update: a command would reach it alone"


class Together:
    """The agreement of this process with the other ranks, if there is one.

    `begin` and `close` belong to the training thread, `takes` to the control thread; `_lock` lets
    either see the other's work as a whole.

    Attributes:
        promises: what binds the training thread.
        lost: why nothing is agreed upon any more, until the gate has let go of everything.
    """

    def __init__(self, observer: Observer, gate: Gate) -> None:
        self.promises = Promises(self._look_again, gate.wake)
        self.lost = ""
        self._observer = observer
        self._gate = gate
        self._agreement: Agreement | None = None
        self._layout: Layout | None = None
        self._early: list[Request] = []
        self._begun = False
        self._lock = threading.Lock()

    # --- the training thread ----------------------------------------------------------------------

    def begin(self) -> None:
        """The first update is coming: find the others."""
        found = job() if self._observer.session.watched else None
        with self._lock:
            self._begun = True
            early, self._early = self._early, []
            if found is not None and self._agreement is None:
                store, rank, size = found
                roots = [root for _, root in self._observer.roster.roots()]
                self._layout = Layout(roots)
                self._agreement = Agreement(
                    store, rank, size, side=_Side(self._observer, self), promises=self.promises
                )
                self._agreement.start()
        for request in early:
            if not self.takes(request):
                self._gate.submit(request)

    def end_join(self, replicas: Iterable[Any]) -> None:
        """The script has left the `Join` of these."""
        if self._layout is not None:
            self._layout.end_join(replicas)

    def close(self, reason: str) -> None:
        """Agree upon nothing any more."""
        if self._agreement is not None:
            self._agreement.close(reason)

    @property
    def is_active(self) -> bool:
        """Whether commands are agreed upon."""
        return self._agreement is not None and not self._agreement.over

    @property
    def rank(self) -> int | None:
        """Of this process among those that agree; None where it is alone."""
        return None if self._agreement is None else self._agreement.rank

    @property
    def decides_alone(self) -> bool:
        """Whether what this rank sees of a gradient is what all of them see."""
        return not self.is_active or (self._layout is not None and self._layout.is_replicated)

    @property
    def uneven(self) -> str:
        """Why this rank must not wait here for the others, or for anybody; "" when it may."""
        return self._layout.uneven if self._layout is not None and self.is_active else ""

    def joint(self, key: str, vote: Vote) -> Vote:
        """What all ranks say to something that each has come to; waits for them."""
        agreement = self._agreement
        return vote if agreement is None else agreement.joint(key, vote)

    def way_back(self, key: str) -> str:
        """Why the ranks cannot go back to the same snapshot now; "" when all of them can."""
        snapshots = self._observer.snapshots
        reason, healthy = snapshots.problem(), snapshots.healthy
        if not self.is_active:
            return reason
        if uneven := self.uneven:
            return uneven
        if not self.decides_alone:
            return reason or "the ranks do not see the same gradients"
        token = "" if healthy is None else f"update {healthy.step}"
        return self.joint(key, Vote(reason, token)).reason

    def pauses(self, key: str, limit_s: float) -> bool:
        """Pause all ranks, for so long at most; False where this one is alone.

        What is asked for again under the same key, by any rank, is one pause.
        """
        if self.is_active:
            self._ask(Asked(Request(key, "tuimon", commands.Pause()), limit_s=limit_s))
        return self.is_active

    def ask_for_hold(self, key: str, reason: str) -> None:
        """Hold all ranks as an update that is not finite does."""
        self._ask(Asked(Request(key, "tuimon", commands.Pause()), held=reason))

    def _look_again(self) -> None:
        """There is something to do at the next gate. Called by any thread."""
        self._gate.busy = True

    # --- the control thread -----------------------------------------------------------------------

    def objection(self, command: commands.Command) -> str:
        """Why ranks cannot carry out a command together; "" when they can, or there are none."""
        agreement = self._agreement
        if agreement is not None and self._layout is not None:
            if agreement.over:
                return agreement.over if job() is not None else ""
            return self._layout.objection(command)
        return _LATE if self._begun and job() is not None else ""

    @property
    def waiting(self) -> int:
        """Commands from here that the ranks have not settled."""
        agreement = self._agreement
        return len(self._early) + (0 if agreement is None else agreement.waiting)

    def takes(self, request: Request) -> bool:
        """Let all ranks agree upon a command; False where this one carries it out alone."""
        with self._lock:
            agreement = self._agreement
            if agreement is None:
                waits = not self._begun and expects_others()
                if waits:
                    self._early.append(request)
                return waits
        if agreement.over:
            if job() is None:
                return False
            _Side(self._observer, self).turn_down(request, agreement.over)
            return True
        command, lease_s = request.command, 0.0
        if isinstance(command, commands.ArmHold):
            # Signs of life reach one rank only, which disarms all of them when they end.
            lease_s, command = command.lease_s, commands.ArmHold()
        self._ask(Asked(msgspec.structs.replace(request, command=command), lease_s=lease_s))
        return True

    def renew(self, lease_s: float) -> None:
        """A viewer is still there."""
        self._ask(Asked(lease_s=lease_s))

    def _ask(self, asked: Asked) -> None:
        agreement = self._agreement
        if agreement is None:
            return
        agreement.ask(asked)
        if agreement.over and asked.request is not None:  # it may have ended in between
            agreement.drop(asked.request)


class _Side:
    """How the agreeing thread reaches the rank that it works for."""

    def __init__(self, observer: Observer, together: Together) -> None:
        self._observer = observer
        self._together = together

    def weigh(self, request: Request, *, is_own: bool) -> str:
        return self._observer.controls.weigh(request.command, is_own=is_own)

    def accept(self, request: Request, *, is_own: bool) -> None:
        self._observer.controls.accept(request, is_own=is_own)

    def turn_down(self, request: Request, reason: str) -> None:
        self._observer.controls.turn_down(request, reason)

    def end(self, reason: str, *, held_up: bool) -> None:
        self._together.lost = reason
        gate = self._observer.gate
        gate.busy = True
        gate.wake()
