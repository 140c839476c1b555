"""`tuimon ctl --via`: one command to a run on another host, through its relay."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from tuimon.cli.control import who_asks
from tuimon.errors import NoSuchRun, Refused
from tuimon.model.commands import AnyCommand
from tuimon.model.records import CommandState
from tuimon.view.frame import GONE, LOADING, OTHER_VERSION, RECONNECTING, WAITING, Frame
from tuimon.view.session import Session, watch_relay

READ_WITHIN_S = 20.0  # a long history over a slow line
_POLL_S = 0.02
_FINAL = ("applied", "refused", "expired")

Clock = Callable[[], float]


def send(
    via: str, token: str, command: AnyCommand, *, timeout_s: float, clock: Clock
) -> CommandState:
    """Ask and follow the command to its end; "expired" when it has none in time.

    Raises:
        NoSuchRun, Refused, IncompatibleVersion: nobody could be asked.
    """
    session = watch_relay(via, token, by=who_asks())
    try:
        frame = read_up(session, clock)
        if frame.state == GONE:
            raise NoSuchRun(f"run {frame.run_id} has ended; `tuimon ls` there lists the runs")
        return follow_frames(session, command, timeout_s=timeout_s, clock=clock)[0]
    finally:
        session.close()


def follow_frames(
    session: Session, command: AnyCommand, *, timeout_s: float, clock: Clock
) -> tuple[CommandState, Frame]:
    """Send a command; (its last state, "expired" when it has none in time; the newest frame)."""
    state = session.send(command)
    frame = session.tick()
    until_s = clock() + timeout_s
    while state.state not in _FINAL:
        if clock() >= until_s:
            reason = f"{state.state}, but not applied in time; it may be applied later"
            return msgspec.structs.replace(state, state="expired", reason=reason), frame
        time.sleep(_POLL_S)
        frame = session.tick()
        found = [each for each in frame.commands if each.id == state.id]
        state = found[0] if found else state
    return state, frame


def ledger(via: str, token: str) -> list[CommandState]:
    """Newest state of every command of a run on another host, oldest first."""
    session = watch_relay(via, token, readonly=True)
    try:
        return list(read_up(session, time.monotonic).commands)
    finally:
        session.close()


def read_up(session: Session, clock: Clock) -> Frame:
    """The first frame that shows the run as it is now."""
    until_s = clock() + READ_WITHIN_S
    frame = session.tick()
    while frame.state in (WAITING, LOADING) and clock() < until_s:
        time.sleep(_POLL_S)
        frame = session.tick()
    if frame.state in (RECONNECTING, OTHER_VERSION):
        raise Refused(frame.state_detail)
    return frame
