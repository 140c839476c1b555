"""The place before an update where the training thread carries out what viewers asked for.

Waiting is `Event.wait` in short slices in the training thread, so that Ctrl-C and the user's own
signal handlers work. The control thread only appends to the queue and sets the event; where there
are other ranks, the agreeing thread hands over what all of them carry out at the same place.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tuimon.model import commands
from tuimon.model.records import PAUSED, RUNNING
from tuimon.model.text import plain
from tuimon.train.agree.carrying import Carrying
from tuimon.train.agree.together import Together
from tuimon.train.boundary import Stop
from tuimon.train.control.answers import Answers
from tuimon.train.control.changes import Changes
from tuimon.train.control.hold import Hold
from tuimon.train.control.taking import Takings
from tuimon.train.control.waiting import Waiting

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

WAIT_SLICE_S = 0.2
# Updates of other optimizers after which a pause no longer waits for the primary one.
PATIENCE = 64
BREAK = "break-"  # begins the id of the pause that ranks agree upon at a breakpoint


class Gate(Answers):
    """Executes queued commands; everything but `submit` belongs to the training thread.

    Attributes:
        busy: there is something to do at the next gate; the only thing looked at per step.
        hold: what becomes of updates whose gradients are not finite.
        together: the other ranks.
        queue: commands that wait.
        promises: places that this rank has come to, or has promised not to pass.
    """

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._observer = observer
        self.queue = Waiting()
        self._wake = threading.Event()
        self.hold = Hold(observer, self)
        self.changes = Changes(observer, self)
        self._takings = Takings(observer, self)
        self.busy = self.paused = self._wants_pause = False
        self._is_break = False  # the pause is that of a breakpoint, which a decision ends
        self._steps_left = 0
        self._stop: commands.Request | None = None
        self._gates_since_stop = 0
        self._others = 0
        self._is_paid = False  # of the steps that were asked for, this update is one
        self.together = Together(observer, self)
        self.promises = self.together.promises
        self._carrying = Carrying(observer, self)

    def wake(self) -> None:
        """There is something to do where the training waits. Called by any thread."""
        self._wake.set()

    def submit(self, request: commands.Request) -> None:
        """Queue an accepted request. Called by the control thread."""
        self.queue.append(request)
        self.busy = True
        self._wake.set()

    def at_gate(self, track: Track) -> float:
        """Called before every update of a watched optimizer; returns the seconds it waited."""
        self.busy = False  # before anything is read: who has something to do sets it afterwards
        primary = self._observer.roster.primary in (None, track)
        self._others = 0 if primary else self._others + 1
        counts = primary or self._others > PATIENCE
        self._is_paid, waited_s = False, 0.0
        if primary and self.promises.pending:
            waited_s = self._pass_with_others(track)
        else:
            self._carry_out(track)
            if self._wants_pause and counts:
                waited_s = self._wait(track)
        if self._stop is not None and counts:
            self._gates_since_stop += 1
            if self._gates_since_stop > 1:
                self._raise_stop()  # no training forward in between: there is no boundary to meet
        if self._wants_pause or self._stop is not None or self.promises.pending:
            self.busy = True
        return waited_s

    def _pass_with_others(self, track: Track) -> float:
        """Carry out what all ranks have agreed upon for this gate; returns the seconds it took."""
        began_s = time.perf_counter()
        self.promises.come_to(2 * self._observer.roster.next_step() + 1)
        while True:
            self._carry_out(track)
            if self._wants_pause and not self._is_paid:
                self._wait(track)
            if self.promises.leave():
                return time.perf_counter() - began_s

    def at_boundary(self) -> None:
        """Called where no graph is alive."""
        if self.queue and isinstance(self.queue[0].command, commands.Stop):
            self._stop = self.queue.popleft()
        if self._stop is not None:
            self._raise_stop()

    def break_here(self, track: Track, limit_s: float) -> float:
        """Pause here for so long at most, as a breakpoint does; returns the seconds it took."""
        if self.together.pauses(f"{BREAK}{self._observer.roster.next_step()}", limit_s):
            return 0.0
        # A pause that somebody asked for lasts until somebody ends it.
        self._is_break = not self._wants_pause
        self._wants_pause, self._steps_left = True, 0
        waited_s = self._wait(track, self.hold.clock() + limit_s)
        self._is_break = False
        self.busy = self.busy or self._wants_pause
        return waited_s

    def end_break(self, request: commands.Request, new: str) -> bool:
        """End a breakpoint's hold by a command that decides about it; False when there is none."""
        if not self._is_break:
            return False
        self._wants_pause = self._is_break = False
        self.applied(request, "paused", new)
        return True

    def _wait(self, track: Track, until_s: float = math.inf) -> float:
        """Hold the training here until it may go on, a breakpoint's hold until then at most."""
        if self._steps_left > 0:
            self._pay()
            return 0.0

        def goes_on() -> bool:
            is_over = self._is_break and self.hold.clock() > until_s
            return is_over or not self._wants_pause or self._steps_left > 0

        session, began_s = self._observer.session, time.perf_counter()
        self.paused = True
        self._observer.snapshots.tell(at_once=True)
        session.set_state(PAUSED)
        try:
            self.wait_until(goes_on, track)
            if self._steps_left > 0:
                self._pay()
            elif self._wants_pause and self._stop is None:
                self._wants_pause = False
                session.event("pause-ended", "nobody decided in time: the training goes on")
        finally:
            self.paused = False
            session.set_state(RUNNING)
        return time.perf_counter() - began_s

    def _pay(self) -> None:
        self._steps_left -= 1
        self._is_paid, self._is_break = True, False

    def wait_until(self, goes_on: Callable[[], bool], track: Track) -> None:
        """Carry out commands as they come, until the training may go on or is to stop."""
        self.promises.come_to(self.promises.place)
        while True:
            while not goes_on() and self._stop is None:
                if not self._carrying.take(track, is_stuck=True):
                    self._observer.controls.let_go_if_cut_off()
                    self._wake.wait(WAIT_SLICE_S)
                    self._wake.clear()
                while self.queue:
                    self.carry(self.queue.popleft(), track)
                self._let_go()
            if self.promises.leave():
                return
            self._carrying.take(track)

    @property
    def is_pausing(self) -> bool:
        """Whether somebody has asked for a pause and not ended it."""
        return self._wants_pause

    @property
    def is_stopping(self) -> bool:
        """Whether the training has been asked to end."""
        return self._stop is not None

    def pause_here(self, track: Track) -> float:
        """Wait if somebody has asked for a pause; returns the seconds it took."""
        if self._wants_pause:
            self.busy = True
            return self._wait(track)
        return 0.0

    def come_to_clipping(self, track: Track) -> None:
        """The script clips ahead of the gate: what concerns clipping must act now to be exact."""
        self._carrying.before_clipping(track)

    def _carry_out(self, track: Track) -> None:
        self._let_go()
        while self.queue:
            self.carry(self.queue.popleft(), track)
        while self._carrying.take(track):
            pass

    def _let_go(self) -> None:
        """The other ranks cannot be asked any more: wait for nobody's decision."""
        reason, self.together.lost = self.together.lost, ""
        if not reason:
            return
        if self._wants_pause or self.hold.reason:
            said = f"{reason}: the training goes on"
            self._observer.session.event("pause-ended", said, severity="warning")
        self._wants_pause = self._is_break = False
        self._steps_left, self.hold.reason = 0, ""

    def carry(self, request: commands.Request, track: Track) -> None:
        """Carry out one command; a failure is a refusal."""
        try:
            self._apply(request, track)
        except Exception as error:
            self._observer.boundary.failed("command", error)
            self.refuse(request, f"it failed: {type(error).__name__}: {error}")

    def _apply(self, request: commands.Request, track: Track) -> None:
        command = request.command
        takers = (self.changes, self._takings, self._observer.breaks)
        if any(each.takes(request, track) for each in takers):
            return
        if isinstance(command, commands.Pause):
            self._pause(request)
        elif isinstance(command, commands.Resume):
            self._resume(request)
        elif isinstance(command, commands.StepOnce):
            self._step_once(request, command.count)
        elif isinstance(command, commands.Stop):
            self._stop = request
            self._gates_since_stop = 0
        elif not self.hold.takes(request):
            self.refuse(request, "this version does not know the command")

    def _pause(self, request: commands.Request) -> None:
        was = self._wants_pause and self._steps_left == 0
        was_break, self._is_break = self._is_break, request.id.startswith(BREAK) and not was
        self._wants_pause, self._steps_left, self._is_paid = True, 0, False
        if self.hold.release(request, "paused"):
            return
        self.applied(request, "paused" if was else "running", "paused")
        if was and not was_break:
            return
        self.event("pause", f"paused before update {self._observer.roster.next_step()}", request)

    def _resume(self, request: commands.Request) -> None:
        if self.hold.release(request, "running"):
            return
        if not self._wants_pause:
            self.applied(request, "running", "running")
            return
        self._wants_pause = self._is_break = False
        self._steps_left = 0
        self.applied(request, "paused", "running")
        self.event("resume", f"resumed at update {self._observer.roster.next_step()}", request)

    def _step_once(self, request: commands.Request, count: int) -> None:
        if self.hold.release(request, f"{count} made, then paused"):
            self._wants_pause, self._steps_left = True, count
            return
        if not self._wants_pause:
            self.refuse(request, "the training is not paused")
            return
        self._steps_left += count
        step = self._observer.roster.next_step()
        self.applied(request, f"paused at {step}", f"paused at {step + self._steps_left}")

    def _raise_stop(self) -> None:
        request, self._stop = self._stop, None
        assert request is not None
        self._wants_pause = False
        self.applied(request, "running", "stopped")
        self.event("stop", f"stopped by {request.by or 'a command'}", request, severity="warning")
        who = plain(request.by, 200) or "a command"
        raise Stop(f"stopped by {who} at step {self._observer.roster.next_step()}")
