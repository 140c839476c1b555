"""Between the screen and a run: frames come in, commands go out, and what to say about them.

Belongs to the thread of the event loop; asking the training happens in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from tuimon.errors import TuimonError
from tuimon.model.commands import AnyCommand, RenewHold
from tuimon.model.records import CommandState
from tuimon.tui.keys.actions import UNREACHABLE
from tuimon.tui.keys.playback import Playback
from tuimon.tui.keys.reach import LEASE_S
from tuimon.tui.panels.events import command_words
from tuimon.view.arming import is_armed
from tuimon.view.frame import Frame

RENEWALS_PER_LEASE = 3  # two of them may be lost
NOTICE_S = 8.0  # how long a sentence stays in the footer
SILENCE = ("", "dim")
_COLOURS = {"applied": "ok", "refused": "bad", "expired": "warn"}

Clock = Callable[[], float]


class RunSession(Protocol):
    """Where frames come from and commands go."""

    def tick(self) -> Frame:
        """Drain the sources within their limits and return the newest frame."""
        ...

    def send(self, command: AnyCommand) -> CommandState:
        """Put a command on its way; may block. Raises TuimonError when nobody can take it."""
        ...

    def look_at(self, rank: int) -> None:
        """Show another rank of the run. Raises TuimonError where there is none to choose."""
        ...

    def close(self) -> None:
        """Let go of the run."""
        ...


class Bridge:
    """One session as the screen sees it.

    Attributes:
        frame: the newest frame, also while the picture is frozen.
        notice: (sentence, colour) for the footer.
    """

    def __init__(self, session: RunSession, clock: Clock) -> None:
        self.frame = Frame()
        self.notice = SILENCE
        self._session = session
        self._clock = clock
        self._until_s = 0.0
        self._told: dict[str, str] = {}  # newest state of each command that was spoken of
        self._first_frame = True
        self._renew_s = float("-inf")
        self._renewing: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def playback(self) -> Playback | None:
        """What plays a recording; None where the session is on a run."""
        return self._session if isinstance(self._session, Playback) else None

    @property
    def is_sending(self) -> bool:
        """Whether a command is on its way to the session."""
        return bool(self._sending)

    def tick(self) -> Frame:
        """The newest frame; commands whose state changed are spoken of."""
        self.frame = self._session.tick()
        for state in self.frame.commands:
            if not self._first_frame:
                self._tell(state)
            self._told[state.id] = state.state
        self._first_frame = False
        if self.playback is not None and (words := self.playback.notice()):
            self.say(words)
        if self._clock() > self._until_s:
            self.notice = SILENCE
        return self.frame

    def close(self) -> None:
        """Let go of the run."""
        self._session.close()

    def say(self, words: str, colour: str = "warn") -> None:
        """Show a sentence for a while."""
        self.notice = (words, colour)
        self._until_s = self._clock() + NOTICE_S

    def look_at(self, rank: int | None) -> None:
        """Let the frames be those of another rank; None where there is no other."""
        if rank is None:
            self.say("no other rank of this run is on its host")
        elif rank == self.frame.rank:
            self.say(f"rank {rank} is the one that is shown", "dim")
        else:
            try:
                self._session.look_at(rank)
            except TuimonError as error:
                self.say(str(error), "bad")
            else:
                self.say(f"rank {rank} is read", "key")

    def renew_hold(self) -> None:
        """Say that this viewer is still there, while a hold is armed; many times a lease."""
        if self._clock() < self._renew_s or not is_armed(self.frame):
            return
        if self.frame.state in UNREACHABLE:
            return
        self._renew_s = self._clock() + LEASE_S / RENEWALS_PER_LEASE
        task = asyncio.get_running_loop().create_task(self._say_alive())
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)

    async def _say_alive(self) -> None:
        with suppress(TuimonError, OSError):
            await asyncio.to_thread(self._session.send, RenewHold(LEASE_S))

    def send(self, command: AnyCommand, then: Callable[[], None]) -> None:
        """Put a command on its way; `then` is called when the session has taken or refused it."""
        self.say(f"{command.words} sent", "key")
        task = asyncio.get_running_loop().create_task(self._deliver(command, then))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, command: AnyCommand, then: Callable[[], None]) -> None:
        try:
            state = await asyncio.to_thread(self._session.send, command)
        except (TuimonError, OSError) as error:
            self.say(f"{command.words} not sent: {error}", "bad")
        else:
            if state.id not in self._told:
                self._tell(state)
                self._told[state.id] = state.state
        then()

    def _tell(self, state: CommandState) -> None:
        if self._told.get(state.id) != state.state:
            self.say(command_words(state), _COLOURS.get(state.state, "key"))
