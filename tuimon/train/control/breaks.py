"""Breakpoints: conditions that are judged at the gate, when the gradients of an update are final.

Belongs to the training thread. With none set nothing here runs; with some, only what they name is
looked at, outputs of modules by hooks that live for one training forward.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from torch import nn

from tuimon.model import commands
from tuimon.model.breakpoints import MAX_BREAKPOINTS, Breakpoint
from tuimon.model.breakpoints import Breakpoints as BreakpointsRecord
from tuimon.model.conditions import OUTPUT, UPDATE, Compare, Condition, judge, tests_of, written
from tuimon.model.parsing import parse
from tuimon.model.text import plain
from tuimon.train.account import Losses
from tuimon.train.control.outputs import TAP, Outputs
from tuimon.train.control.readings import LateReadings, Readings, sampled_by, unreadable

if TYPE_CHECKING:
    from tuimon.model.samples import ParameterSample
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

EVENT = "breakpoint"  # kind of the event of a hit


class _Set:
    """One breakpoint that is set.

    Attributes:
        was: by index of the optimizer, whether it was true when it was last known.
    """

    def __init__(self, number: int, text: str, by: str) -> None:
        self.number = number
        self.condition: Condition = parse(text)
        self.text = written(self.condition)
        self.by = by
        self.hits = 0
        self.last_step: int | None = None
        self.was: dict[int, bool] = {}
        tests = [each for each in tests_of(self.condition) if not isinstance(each, Compare)]
        self.names_layers = any(each.pattern for each in tests)
        self.outputs = [each.pattern for each in tests if each.what == OUTPUT]
        self.samples = any(each.what == UPDATE for each in tests)


class Breaks:
    """What is set, and what becomes of it at every update.

    Attributes:
        armed: some breakpoint is set; all that is looked at in a step without one.
        listens: some breakpoint speaks of outputs; all that is looked at in a forward.
    """

    def __init__(self, observer: Observer) -> None:
        self.armed = self.listens = False
        self._observer = observer
        self._set: list[_Set] = []
        self._numbers = 0
        self._outputs = Outputs(observer)
        self._samples: dict[str, ParameterSample] = {}
        self._last_late: dict[int, int] = {}
        self._waited_s = 0.0
        self.before_forward = observer.boundary.within(TAP, self._before_forward)
        self.judge = observer.boundary.within(TAP, self._judge)

    # --- commands ---------------------------------------------------------------------------------

    def takes(self, request: commands.Request, track: Track) -> bool:
        """Carry out a command about breakpoints; False for any other."""
        command = request.command
        if isinstance(command, commands.SetBreakpoint):
            self._add(request, command, track)
        elif isinstance(command, commands.ClearBreakpoint):
            self._clear(request, command.number)
        else:
            return False
        return True

    def _add(
        self, request: commands.Request, command: commands.SetBreakpoint, track: Track
    ) -> None:
        gate = self._observer.gate
        added = _Set(self._numbers + 1, command.condition, plain(request.by, 200))
        if any(each.text == added.text for each in self._set):
            gate.refuse(request, "this breakpoint is set already")
            return
        if len(self._set) >= MAX_BREAKPOINTS:
            gate.refuse(request, f"{MAX_BREAKPOINTS} breakpoints are set; clear one first")
            return
        if reason := unreadable(added.condition, self._observer, track):
            gate.refuse(request, reason)
            return
        self._numbers += 1
        self._set.append(added)
        self._changed()
        gate.applied(request, None, f"breakpoint {added.number}")
        gate.event("breakpoint-set", f"breakpoint {added.number} set: {added.text}", request)

    def _clear(self, request: commands.Request, number: int | None) -> None:
        gate = self._observer.gate
        gone = [each for each in self._set if number in (None, each.number)]
        if not gone:
            what = "no breakpoint is set" if number is None else f"no breakpoint {number} is set"
            gate.refuse(request, what)
            return
        self._set = [each for each in self._set if each not in gone]
        self._changed()
        words = ", ".join(str(each.number) for each in gone)
        gate.applied(request, f"breakpoint {words}", "cleared")
        gate.event("breakpoint-cleared", f"breakpoint {words} cleared", request)

    def _changed(self) -> None:
        """What follows from what is set."""
        extras = self._observer.extras
        self.armed = bool(self._set)
        self._outputs.follow([pattern for each in self._set for pattern in each.outputs])
        self.listens = self._outputs.wanted
        wants = any(each.samples for each in self._set)
        extras.on_samples = functools.partial(sampled_by, self._samples) if wants else None
        self._publish()

    def _publish(self) -> None:
        items = [
            Breakpoint(each.number, each.text, each.by, each.hits, each.last_step)
            for each in self._set
        ]
        self._observer.session.keep("breakpoints", BreakpointsRecord(items))

    # --- an update --------------------------------------------------------------------------------

    def _before_forward(self, root: nn.Module) -> None:
        """A training forward of a root begins, and outputs are waited for."""
        self._outputs.before_forward(root)

    def _judge(self, track: Track) -> bool:
        """The gradients of an update are final; whether some breakpoint was hit."""
        observer = self._observer
        began_s = time.perf_counter()
        self._waited_s = track.update.waited_s
        readings = self._readings(track)
        hits = []
        for each in self._set if readings is not None else ():
            if track.index and not each.names_layers:
                continue  # figures of the run are those of its primary optimizer
            assert readings is not None
            found = judge(each.condition, readings)
            if found.holds is None:
                continue
            before = each.was.get(track.index, False)
            each.was[track.index] = found.holds
            if found.holds and not before:
                hits.append((each, found.seen))
        if track.index == 0:
            self._samples.clear()
            self._outputs.clear()
        observer.times.cost_s += self._outputs.spent_s
        self._outputs.spent_s = 0.0
        if hits:
            assert readings is not None
            self._tell(hits, readings.step)
        observer.spent(began_s)
        return bool(hits)

    def _readings(self, track: Track) -> Readings | LateReadings | None:
        observer = self._observer
        if track.late is not None:
            newest = track.late.newest
            if newest is None or self._last_late.get(track.index) == newest.step:
                return None
            self._last_late[track.index] = newest.step
            return LateReadings(observer, track, newest)
        losses = observer.losses
        if losses.calls == 0:
            losses = observer.last_losses or Losses()
        activations = self._outputs.seen() if self.listens else []
        return Readings(observer, track, losses, activations, self._samples)

    def _tell(self, hits: list[tuple[_Set, tuple[str, ...]]], step: int) -> None:
        session = self._observer.session
        next_step = self._observer.roster.next_step()
        until_s: float | None = time.time() + self._observer.examiner.policy.hold_limit_s
        if self._observer.gate.is_pausing:
            until_s = None
        gone = next_step - step
        late = f", seen {gone:,} update{'s' * (gone > 1)} later" if gone else ""
        for each, seen in hits:
            each.hits += 1
            each.last_step = step
            why = f" ({', '.join(seen)})" if seen else ""
            text = f"breakpoint {each.number}: {each.text}{why} at step {step:,}{late}"
            session.event(
                EVENT,
                text,
                severity="warning",
                detail=f"hit {each.hits:,}; set by {each.by}" if each.by else f"hit {each.hits:,}",
                step=next_step,
                until_s=until_s,
            )
        self._publish()

    def wait(self, track: Track) -> None:
        """After a hit: hold the training, unless it was held for this update already."""
        observer = self._observer
        if track.update.waited_s > self._waited_s:
            return
        waited_s = observer.gate.break_here(track, observer.examiner.policy.hold_limit_s)
        track.update.waited_s += waited_s
        observer.times.cost_s -= waited_s  # waiting was asked for; it is not a cost
        if observer.examiner.requested:
            observer.examiner.while_held(track)
