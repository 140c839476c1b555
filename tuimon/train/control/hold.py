"""What becomes of an update whose gradients are not finite: held, left out, refused or made.

Only `renew` belongs to the control thread, which writes one whole word; everything else belongs to
the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from tuimon.model import commands
from tuimon.model.records import HELD, HELD_UPDATE, RUNNING, Pending
from tuimon.model.verdict import sentence
from tuimon.train.control import policy

if TYPE_CHECKING:
    from tuimon.train.control.gate import Gate
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track


class Hold:
    """The decision about bad updates, and the place where it is waited for.

    Attributes:
        reason: why the training is held; "" while it is not.
        clock: seconds, for limits and leases.
        skips: updates that are still to be left out because somebody asked for it.
        bad: indices of the optimizers whose last gradients were not finite.
    """

    def __init__(
        self, observer: Observer, gate: Gate, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.reason = ""
        self.clock = clock
        self.skips = 0
        self._observer = observer
        self._gate = gate
        self._armed = False
        self.bad: set[int] = set()
        self._lease_until_s: float | None = None

    # --- who wants it -----------------------------------------------------------------------------

    @property
    def is_armed(self) -> bool:
        """Whether a command wants updates to be held, and whoever sent it is still there."""
        return self._armed and not self.has_lapsed

    @property
    def has_lapsed(self) -> bool:
        """Whether a viewer has armed it, and none has been heard of for too long."""
        until_s = self._lease_until_s
        return self._armed and until_s is not None and self.clock() > until_s

    def renew(self, lease_s: float) -> None:
        """A viewer is still there: what is armed by a lease stays armed."""
        if self._lease_until_s is not None:
            self._lease_until_s = self.clock() + lease_s

    @property
    def _by_policy(self) -> bool:
        return self._observer.examiner.policy.on_non_finite == policy.HOLD

    # --- commands ---------------------------------------------------------------------------------

    def takes(self, request: commands.Request) -> bool:
        """Carry out a command that concerns bad updates; False for any other."""
        command = request.command
        if isinstance(command, commands.ArmHold):
            self._arm(request, command.lease_s)
        elif isinstance(command, commands.DisarmHold):
            self._disarm(request)
        elif isinstance(command, commands.SkipUpdate):
            self._skip(request, command.count)
        elif isinstance(command, commands.RollBack):
            self._roll_back(request, command.lr_factor)
        elif isinstance(command, commands.RunAutopsy):
            self._observer.examiner.requested = True
            self._gate.applied(request, None, "at this update")
        else:
            return False
        return True

    def release(self, request: commands.Request, new: str) -> bool:
        """End a hold by a command that decides about it; False when there is none."""
        if not self.reason:
            return False
        self.reason = ""
        self._gate.applied(request, "held", new)
        return True

    def _arm(self, request: commands.Request, lease_s: float) -> None:
        old = "armed" if self.is_armed else "off"
        self._armed = True
        self._lease_until_s = self.clock() + lease_s if lease_s > 0 else None
        self._gate.applied(request, old, "armed")

    def _disarm(self, request: commands.Request) -> None:
        old = "armed" if self.is_armed else "off"
        self._armed, self._lease_until_s = False, None
        if not self._by_policy:
            self.reason = ""
        self._gate.applied(request, old, "off")

    def _skip(self, request: commands.Request, count: int) -> None:
        step = self._observer.roster.next_step()
        self.skips += count
        new = f"update {step} left out" if count == 1 else f"{count} left out from update {step} on"
        if not (self.release(request, new) or self._gate.end_break(request, new)):
            self._gate.applied(request, None, f"{count} left out from update {step} on")

    def _roll_back(self, request: commands.Request, lr_factor: float | None) -> None:
        observer, step = self._observer, self._observer.roster.next_step()
        if reason := observer.snapshots.problem():
            self._gate.refuse(request, reason)
            return
        taken = self.roll_back(request.by or "a command")
        if lr_factor is not None:
            self._gate.changes.scale(lr_factor)
        self.skips += 1  # the gradients that wait here are those of weights that are gone
        new = f"the state after update {taken:,}; update {step:,} left out"
        if not (self.release(request, new) or self._gate.end_break(request, new)):
            self._gate.applied(request, f"update {step - 1:,}", new)

    # --- an update --------------------------------------------------------------------------------

    def settle(self, track: Track) -> None:
        """The gradients of an update are known: decide about it.

        Raises:
            NonFinite: the policy says so.
        """
        # A GradScaler leaves such an update out by itself.
        bad = track.update.is_bad and self._observer.scaling is not track
        fresh = track.index not in self.bad
        (self.bad.add if bad else self.bad.discard)(track.index)
        wanted = self._observer.examiner.policy.on_non_finite
        is_held = bad and fresh and (self._by_policy or self.is_armed)
        if is_held and (uneven := self._gate.together.uneven):
            text = f"update {self._observer.roster.next_step():,} is not held: {uneven}"
            self._observer.session.event("hold-failed", text, severity="warning")
        elif is_held and not self._gate.together.decides_alone:
            step = self._observer.roster.next_step()
            self._gate.together.ask_for_hold(f"hold-{step}", self._finding())
        elif is_held:
            waited_s = self._wait(track)
            track.update.waited_s += waited_s
            self._observer.times.cost_s -= waited_s  # waiting was asked for; it is not a cost
        elif bad and wanted == policy.ROLLBACK:
            self._go_back(track)
        elif bad and wanted == policy.SKIP:
            self._leave_out(track, "its gradients were not finite")
        elif bad and wanted == policy.RAISE:
            raise policy.NonFinite(self._finding(), self._observer.roster.next_step())

    def leave_out_asked(self, track: Track) -> None:
        """Nothing waits for this update any more: leave it out if it is one of those asked for."""
        self.skips -= 1
        if not track.update.left_out:
            self._leave_out(track, "somebody asked for it")

    def _finding(self) -> str:
        """What is bad, in one sentence."""
        step = self._observer.roster.next_step()
        newest = self._observer.examiner.newest
        if newest is not None and newest.step == step and newest.first is not None:
            return sentence(newest)
        return f"step {step:,}: gradients are not finite"

    def _go_back(self, track: Track) -> None:
        """By the policy: leave this update out, and return to the healthy state if there is one."""
        snapshots, step = self._observer.snapshots, self._observer.roster.next_step()
        reason = self._gate.together.way_back(f"bad-{step}")
        if not reason and snapshots.is_worn:
            reason = f"it went wrong {snapshots.uses} times after the same snapshot"
        if reason:
            self._leave_out(track, f"its gradients were not finite, and {reason}")
            return
        self._leave_out(track, "its gradients were not finite")
        if track.update.left_out:
            self.roll_back("the policy")

    def roll_back(self, who: str) -> int:
        """Put the healthy state back; returns the update after which it was taken."""
        session, step = self._observer.session, self._observer.roster.next_step()
        taken = self._observer.snapshots.roll_back()
        lost = step - taken - 1
        updates = "update" if lost == 1 else "updates"
        text = f"rolled back to the state after update {taken:,}: {lost:,} {updates} lost"
        tell = partial(session.event, severity="warning", detail=f"by {who}", step=step)
        tell("rollback", text, first_step=taken + 1)
        return taken

    def _leave_out(self, track: Track, reason: str) -> None:
        session = self._observer.session
        step = self._observer.roster.next_step()
        if track.update.has_closure:
            text = f"update {step:,} calls back into the script, so that it cannot be left out"
            session.event("skip-failed", text, severity="warning", step=step)
            return
        track.update.left_out = reason
        text = f"update {step:,} left out: {reason}"
        session.event("skip", text, severity="warning", step=step)

    def wait_with_others(self, reason: str, track: Track) -> float:
        """Hold an update because an earlier one of some rank was not finite."""
        return self._wait(track, reason)

    def _pending(self, track: Track) -> Pending:
        """The update that is held, as it is known so far."""
        newest, before = self._observer.losses, self._observer.last_losses
        losses = newest if newest.calls or before is None else before
        track.update.skipped = False
        record = track.record(track.place(), losses, None, late=False)
        return Pending(structs.replace(record, left_out=HELD_UPDATE))

    def _wait(self, track: Track, reason: str = "") -> float:
        """Until somebody decides, the limit is reached, or nobody is left who could decide."""
        session, gate = self._observer.session, self._gate
        limit_s = self._observer.examiner.policy.hold_limit_s
        began_s, until_s = time.perf_counter(), self.clock() + limit_s
        self.reason = reason or self._finding()
        step = self._observer.roster.next_step()
        text = f"held before update {step:,}; goes on by itself after {limit_s:g} s"
        ends_s = time.time() + limit_s
        session.event(
            "hold", text, severity="critical", detail=self.reason, step=step, until_s=ends_s
        )
        if track.update.is_bad:
            session.publish(self._pending(track))
        self._observer.snapshots.tell(at_once=True)
        session.set_state(HELD)
        ended = ""

        def goes_on() -> bool:
            nonlocal ended
            if self.clock() > until_s:
                ended = f"nobody decided within {limit_s:g} s: the training goes on"
            elif self.has_lapsed and not self._by_policy:
                ended = "the last viewer has left: the training goes on"
            return not self.reason or bool(ended)

        try:
            gate.wait_until(goes_on, track)
        finally:
            self.reason = ""
            session.set_state(RUNNING)
        if gate.is_stopping:
            self._leave_out(track, "the training was stopped while it was held")
        if ended:
            session.event("hold-ended", ended, severity="warning")
        return time.perf_counter() - began_s + gate.pause_here(track)
