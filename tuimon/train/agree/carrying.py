"""Carries out at the gate what all ranks have agreed upon, so that it has one outcome.

Belongs to the training thread. Where a rank could fail alone, all tell each other what they found
before anything is told to viewers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tuimon.model import commands
from tuimon.model.records import CommandState
from tuimon.train.agree.messages import Vote
from tuimon.train.agree.promises import Agreed
from tuimon.train.control.answers import HeldBack

if TYPE_CHECKING:
    from tuimon.train.control.gate import Gate
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

_CHANGES = (
    commands.SetClip | commands.SetMaxNorm | commands.ScaleLr | commands.SetLr | commands.ReleaseLr
)
_CLIPS = commands.SetClip | commands.SetMaxNorm | commands.Undo
_JUDGED = _CHANGES | commands.Dump | commands.SaveCheckpoint | commands.Inspect


class Carrying:
    """One command after another, in the order of agreement."""

    def __init__(self, observer: Observer, gate: Gate) -> None:
        self._observer = observer
        self._gate = gate
        self._due: deque[Agreed] = deque()  # was come to where only clipping is carried out

    def take(self, track: Track, *, is_stuck: bool = False) -> bool:
        """Carry out what is due next; False when nothing is.

        Args:
            track: whose update it is.
            is_stuck: the training waits here for a decision.
        """
        promises = self._gate.promises
        agreed = self._due.popleft() if self._due else promises.next(is_stuck=is_stuck)
        if agreed is not None:
            self.carry(agreed, track)
        return agreed is not None

    def before_clipping(self, track: Track) -> None:
        """The script clips ahead of the gate: carry out what may concern clipping."""
        gate, promises = self._gate, self._gate.promises
        place = 2 * self._observer.roster.next_step()
        if place > promises.place:
            promises.place = place
        if not gate.busy:
            return
        while gate.queue and isinstance(gate.queue[0].command, _CLIPS):
            gate.carry(gate.queue.popleft(), track)
        if promises.pending:
            self._before_clipping(track)

    def _before_clipping(self, track: Track) -> None:
        promises = self._gate.promises
        promises.come_to(promises.place)
        while True:
            while (agreed := promises.next()) is not None:
                self._due.append(agreed)
            while self._due and isinstance(self._due[0].request.command, _CLIPS):
                self.carry(self._due.popleft(), track)
            if promises.leave():
                break
        if self._due:
            self._gate.busy = True

    def carry(self, agreed: Agreed, track: Track) -> None:
        """Do what was agreed upon, or refuse it as all others do."""
        gate, request = self._gate, agreed.request
        command, rank = request.command, gate.together.rank
        if agreed.held:
            gate.hold.wait_with_others(agreed.held, track)
        elif isinstance(command, commands.RollBack):
            self._roll_back(agreed, track)
        elif isinstance(command, commands.SaveCheckpoint) and rank:
            self._conclude(agreed, None, lambda: gate.applied(request, None, "on rank 0"))
        elif isinstance(command, commands.RunAutopsy) and rank != command.rank:
            gate.applied(request, None, f"on rank {command.rank}")
        elif isinstance(command, _JUDGED):
            self._judge(agreed, track)
        else:
            gate.carry(request, track)

    def _roll_back(self, agreed: Agreed, track: Track) -> None:
        """Every rank goes back to the same update, or none does."""
        reason = self._gate.together.way_back(f"round-{agreed.number}")
        if reason:
            self._gate.refuse(agreed.request, reason)
        else:
            self._gate.carry(agreed.request, track)

    def _judge(self, agreed: Agreed, track: Track) -> None:
        """Do it, hear what became of it elsewhere, and take it back if somebody failed."""
        gate = self._gate
        kept = gate.held_back = HeldBack()
        try:
            gate.carry(agreed.request, track)
        finally:
            gate.held_back = None
        state = kept.state

        def tell() -> None:
            if state is not None:
                gate.tell(state)
            for event in kept.events:
                event()

        self._conclude(agreed, state, tell)

    def _conclude(
        self, agreed: Agreed, state: CommandState | None, tell: Callable[[], None]
    ) -> None:
        gate = self._gate
        own = state.reason if state is not None and state.state != "applied" else ""
        verdict = gate.together.joint(f"round-{agreed.number}", Vote(own))
        if not verdict.reason:
            tell()
            return
        if not own and isinstance(agreed.request.command, _CHANGES):
            gate.changes.undo_newest()
        gate.refuse(agreed.request, verdict.reason)
