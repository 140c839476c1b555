"""Decides about requests in the control thread: what is impossible is refused with a reason.

Runs no torch code and changes nothing of the training; accepted requests go to the gate.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tuimon.feed import private
from tuimon.model import commands
from tuimon.model.records import CLIP_ON, CommandState
from tuimon.model.stages import stage_of
from tuimon.train.control import clip

if TYPE_CHECKING:
    from tuimon.train.observer import Observer


# Folders that are made for what is written: the one named, and that of a repeated run in it. More
# that are missing are rather a slip of the pen.
_MAX_MADE = 2


class Controls:
    """Validates against the state the training will have when the queue has been worked off.

    `_paused` and `_has_bound` are that projection; written under `_lock` by the control thread.
    """

    def __init__(self, observer: Observer, clock: Callable[[], float] = time.monotonic) -> None:
        self._observer = observer
        self._lock = threading.Lock()
        self._paused = False
        self._has_bound = False
        self._stopping = False
        self._clock = clock
        self._turned_away = 0  # since it was told; both by the control thread only
        self._told_at_s = -math.inf
        self._has_let_go = False

    def on_request(self, request: commands.Request) -> CommandState:
        """Accept or refuse; every viewer sees the answer in the ring."""
        if isinstance(request.command, commands.RenewHold):
            # A sign of life, many times a minute: nothing for the ring, the queue or the ledger.
            self._observer.gate.hold.renew(request.command.lease_s)
            self._observer.gate.together.renew(request.command.lease_s)
            return CommandState(request.id, request.command.title, "accepted", by=request.by)
        gate = self._observer.gate
        if crowd := gate.queue.crowd(request.by, gate.together.waiting):
            return self._turn_away(request, crowd)
        with self._lock:
            reason = self._problem(request.command)
            if not reason:
                self._project(request.command)
        state = self._tell(request, "refused" if reason else "accepted", reason)
        if not reason and not gate.together.takes(request):
            gate.submit(request)
        return state

    def let_go_if_cut_off(self) -> None:
        """Once nobody can end a wait, end it. Called by the training thread, while it waits."""
        session = self._observer.session
        if self._has_let_go or not session.is_cut_off:
            return
        self._has_let_go = True
        text = "the run folder was deleted while the training waited, and nobody could end it"
        session.event("cut-off", f"{text}: it goes on", severity="warning")
        self.on_request(commands.Request(f"cut-off-{os.getpid()}", "tuimon", commands.Resume()))

    def _turn_away(self, request: commands.Request, crowd: str) -> CommandState:
        """Refuse what cannot wait; viewers hear of it once a second, whoever asks every time."""
        self._turned_away += 1
        now_s = self._clock()
        if now_s - self._told_at_s < 1.0:
            return self._state(request, "refused", crowd)
        also = f"; with this one {self._turned_away:,} were refused" * (self._turned_away > 1)
        self._told_at_s, self._turned_away = now_s, 0
        return self._tell(request, "refused", crowd + also)

    def _tell(self, request: commands.Request, state: str, reason: str = "") -> CommandState:
        told = self._state(request, state, reason)
        self._observer.session.publish(told)
        return told

    def _state(self, request: commands.Request, state: str, reason: str) -> CommandState:
        return stage_of(request, state, reason=reason, step=self._observer.roster.next_step())

    # --- with other ranks, by the agreeing thread -------------------------------------------------

    def weigh(self, command: commands.Command, *, is_own: bool) -> str:
        """Why this rank cannot do what all are to do; what was asked for here has been looked at.

        Args:
            command: what it is.
            is_own: it was asked for here.
        """
        together = self._observer.gate.together
        if reason := command.problem() or together.objection(command):
            return reason
        if is_own or (isinstance(command, commands.SaveCheckpoint) and together.rank):
            return ""
        with self._lock:
            return self._problem_now(command)

    def accept(self, request: commands.Request, *, is_own: bool) -> None:
        """All ranks will do it; whoever asked here has been told so already."""
        if is_own:
            return
        with self._lock:
            self._project(request.command)
        self._tell(request, "accepted")

    def turn_down(self, request: commands.Request, reason: str) -> None:
        """No rank will do it."""
        with self._lock:
            if isinstance(request.command, commands.Stop):
                self._stopping = False
            elif isinstance(request.command, commands.Pause):
                self._paused = False
        self._tell(request, "refused", reason)

    def repeat(self, request: commands.Request) -> str:
        """Why an intervention of an earlier run cannot be repeated; "" when it is to be queued.

        Asked by the training thread, on every rank by itself.
        """
        with self._lock:
            reason = request.command.problem() or self._problem_now(request.command)
            if not reason:
                self._project(request.command)
        return reason

    def _problem(self, command: commands.Command) -> str:
        return (
            command.problem()
            or self._problem_now(command)
            or self._observer.gate.together.objection(command)
        )

    def _problem_now(self, command: commands.Command) -> str:
        """Why it cannot be done as things stand."""
        if self._stopping:
            return "the training has been told to stop"
        gate = self._observer.gate
        can_step = self._paused or gate.paused or gate.hold.reason
        if isinstance(command, commands.StepOnce) and not can_step:
            return "the training is not paused; pause it first"
        if isinstance(command, commands.SetClip):
            return self._clip_problem(command)
        if isinstance(command, commands.Dump):
            return self._dump_problem(command)
        if isinstance(command, commands.SaveCheckpoint):
            return _folder_problem(command.directory)
        return ""

    def _clip_problem(self, command: commands.SetClip) -> str:
        if clip.total_norm is None or clip.multiply is None:
            return (
                "this version of torch has no separate clipping functions; torch 2.6 or newer does"
            )
        known = self._has_bound or self._observer.clipping.bound is not None
        if command.mode == CLIP_ON and command.max_norm is None and not known:
            return "no max_norm is known; name one: clip on --max-norm X"
        return ""

    def _dump_problem(self, command: commands.Dump) -> str:
        table = self._observer.roster.layers.table
        known = [*table.names, *table.aliases]
        for wanted in command.layers:
            if not any(matches(name, wanted) for name in known):
                return f"no layer {wanted[:100]!r}; names are as in the layer table"
        return _folder_problem(command.directory)

    def _project(self, command: commands.Command) -> None:
        if isinstance(command, commands.Pause | commands.StepOnce):
            self._paused = True
        elif isinstance(command, commands.Resume):
            self._paused = False
        elif isinstance(command, commands.Stop):
            self._stopping = True
        elif isinstance(command, commands.SetMaxNorm) or (
            isinstance(command, commands.SetClip) and command.max_norm is not None
        ):
            self._has_bound = True


def matches(name: str, wanted: str) -> bool:
    """Whether `wanted` names this parameter, or a module above it; "" names everything."""
    return name == wanted or not wanted or name.startswith(wanted + ".")


def _folder_problem(directory: str) -> str:
    """Why nothing can be written there, as far as a look tells; "" when it can."""
    folder, made = Path(directory), 0
    if problem := private.link_problem(folder):
        return problem
    try:
        while not folder.exists() and folder != folder.parent:
            missing, folder = folder, folder.parent
            made += 1
        shutil.disk_usage(folder)
    except OSError as error:
        return f"{directory[:200]} cannot be used: {error.strerror}"
    if not folder.is_dir():
        return f"{folder} is not a folder"
    return f"{missing} does not exist; make it first" if made > _MAX_MADE else ""
