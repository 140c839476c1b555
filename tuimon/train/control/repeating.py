"""Repeats the interventions of an earlier run: each is queued before the update it was applied at.

Belongs to the training thread. Every rank of a job reads the same ledger and repeats by itself, so
that nothing has to be agreed upon; what they repeat has the same id on all of them.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tuimon.model import commands
from tuimon.model.ledger import FINAL_STATES, Intervention, Ledger, in_words
from tuimon.model.records import CommandState
from tuimon.model.stages import stage_of
from tuimon.model.text import plain
from tuimon.train.boundary import say
from tuimon.train.place import find_place

if TYPE_CHECKING:
    from tuimon.train.observer import Observer

# What changes a training, or writes what it is. The others are about waiting and looking.
_REPEATED = (
    commands.SetClip
    | commands.SetMaxNorm
    | commands.ScaleLr
    | commands.SetLr
    | commands.ReleaseLr
    | commands.Undo
    | commands.SkipUpdate
    | commands.RollBack
    | commands.Dump
    | commands.SaveCheckpoint
    | commands.RunAutopsy
    | commands.Stop
)


class Repeating:
    """What is still to be repeated, and what became of the rest.

    Attributes:
        waiting: in the order of their steps.
    """

    def __init__(self, observer: Observer, ledger: Ledger) -> None:
        self._observer = observer
        self._run = ledger.run
        wanted = [each for each in ledger.applied if isinstance(each.command, _REPEATED)]
        self.waiting = deque(wanted)
        others = [each.command.title for each in ledger.applied if each not in wanted]
        self._left_out = in_words([*map(commands.title_words, others), *ledger.unknown])
        self._asked: dict[str, Intervention] = {}
        self._failed: set[str] = set()  # ids of the earlier run
        self._told: dict[str, int] = dict.fromkeys(FINAL_STATES, 0)
        self._speaks = find_place().rank == 0  # one rank says on stderr what all of them do

    def begin(self) -> None:
        """Say what will be done. What belongs to the first update is queued when it comes."""
        session = self._observer.session
        count = len(self.waiting)
        text = f"repeats {count} intervention{'' if count == 1 else 's'} of run {self._run}"
        left_out = f"not repeated: {self._left_out}" if self._left_out else ""
        session.event("apply", text, detail=left_out)
        session.before_finish(self.end)
        step = self._observer.roster.next_step()
        # A stop acts at the first boundary, which comes before the first update.
        if step or (self.waiting and isinstance(self.waiting[0].command, commands.Stop)):
            self.before(step)

    def before(self, step: int) -> None:
        """Queue what was applied at the update that comes next."""
        while self.waiting and self.waiting[0].step <= step:
            self._repeat(self.waiting.popleft(), step)

    def on_state(self, state: CommandState) -> None:
        """The gate has told what became of a command."""
        wanted = self._asked.pop(state.id, None)
        if wanted is None:
            return
        self._told[state.state] = self._told.get(state.state, 0) + 1
        if state.state != "applied":
            self._failed.add(wanted.id)
        if state.state != "applied" and self._speaks:
            say(f"--apply: {state.words} of step {wanted.step:,} {state.state}: {state.reason}")

    def end(self) -> None:
        """The run ends: what was not reached has expired."""
        spawned = self._observer.session.spawned()
        if spawned and not self._observer.roster.next_step():
            say(f"--apply: no update was made here; repeating was left to {spawned} spawned")
            return
        for each in list(self.waiting):
            reason = f"the run ended before update {each.step:,}"
            self._observer.session.publish(stage_of(self._request(each), "expired", reason=reason))
        repeated, refused = self._told["applied"], self._told["refused"]
        parts = [f"{repeated} of run {self._run} repeated"]
        parts += [f"{refused} refused"] if refused else []
        if missing := len(self.waiting) + len(self._asked):
            parts.append(f"{missing} not reached")
        parts += [f"not repeated: {self._left_out}"] if self._left_out else []
        self.waiting.clear()
        self._asked.clear()
        if self._speaks:
            say(f"--apply: {'; '.join(parts)}")

    def _repeat(self, wanted: Intervention, step: int) -> None:
        request = self._request(wanted)
        self._asked[request.id] = wanted
        if wanted.step < step:
            reason = f"step {wanted.step:,} is past"
        elif wanted.undoes in self._failed:
            reason = "what it takes back was not repeated"
        else:
            reason = self._observer.controls.repeat(request)
        state = stage_of(request, "refused" if reason else "accepted", step=step, reason=reason)
        self._observer.session.publish(state)
        if reason:
            self.on_state(state)
        else:
            self._observer.gate.submit(request)

    def _request(self, wanted: Intervention) -> commands.Request:
        by = plain(f"ledger of {self._run}: {wanted.by}", 200)
        same = hashlib.sha256(f"{self._run} {wanted.id}".encode()).hexdigest()[:32]
        return commands.Request(same, by, self._fresh(wanted.command), time.time())

    def _fresh(self, command: commands.AnyCommand) -> commands.AnyCommand:
        """The command, writing where this run has a place of its own."""
        if isinstance(command, commands.Dump | commands.SaveCheckpoint):
            info = self._observer.session.info
            place = f"{command.directory.rstrip('/')}/run-{info.id if info else 'again'}"
            return msgspec.structs.replace(command, directory=place)
        return command
