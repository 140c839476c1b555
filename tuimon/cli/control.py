"""`tuimon ctl`: one typed command to a training, followed until it is applied or refused."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click
import msgspec

from tuimon.errors import EXIT_OK, EXIT_REFUSED, NoSuchRun, Refused, TuimonError, UsageError
from tuimon.feed import asking, registry
from tuimon.feed import ledger as ledger_files
from tuimon.feed.codec import decode
from tuimon.feed.history import read_history
from tuimon.feed.registry import RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model.commands import AnyCommand, Request, title_words
from tuimon.model.ledger import FINAL_STATES, Kept, arguments_of, iso
from tuimon.model.records import CommandState, Goodbye, Record
from tuimon.model.stages import stage_of
from tuimon.model.text import plain
from tuimon.model.units import DASH

_POLL_S = 0.05

Clock = Callable[[], float]


class Target(NamedTuple):
    """Which run, and the command that leads to its host; None is this host."""

    token: str
    via: str | None = None


def send(
    target: Target,
    command: AnyCommand,
    *,
    timeout_s: float,
    as_json: bool,
    clock: Clock = time.monotonic,
) -> int:
    """Ask, wait until the ring tells what became of it, print that; the exit status.

    Raises:
        UsageError: the command makes no sense for any training.
        NoSuchRun, Refused, IncompatibleVersion: nobody could be asked.
    """
    if problem := command.problem():
        raise UsageError(problem)
    if target.via is not None:
        from tuimon.cli import far

        told = far.send(target.via, target.token, command, timeout_s=timeout_s, clock=clock)
        return print_outcome(told, as_json=as_json)
    info = live_run(target.token)
    request = Request(uuid.uuid4().hex, who_asks(), command, time.time())
    until_s = clock() + timeout_s
    reader = _ring_of(info, until_s, clock)
    try:
        state = asking.ask(info, request, patience_s=until_s - clock(), clock=clock)
        if state.state == "accepted":
            state = follow(info, reader, state, until_s, clock)
    except Refused as error:
        # A process that is stopped finds the request when it goes on: silence is no refusal.
        is_silent = isinstance(error.__cause__, TimeoutError)
        fate = "expired" if is_silent else "refused"
        reason = f"{error}{'; it may be applied when the process goes on' if is_silent else ''}"
        state = stage_of(request, fate, reason=reason)
    finally:
        reader.close()
    return print_outcome(state, as_json=as_json)


def _ring_of(info: RunInfo, until_s: float, clock: Clock) -> RingReader:
    """What a training publishes; one that has only just begun is listed before it has a ring."""
    while True:
        try:
            return RingReader(info.ring(), at_end=True)
        except NoSuchRun:
            if not (info.path / "run.json").exists() or clock() >= until_s:
                raise
        time.sleep(_POLL_S)


def live_run(token: str) -> RunInfo:
    """The run that `token` names, which must still be alive.

    Raises:
        NoSuchRun: there is none, or its training has ended.
    """
    info = registry.find_run(token)
    if not registry.is_alive(info):
        how = f" ({info.exit.kind})" if info.exit is not None else ""
        raise NoSuchRun(f"run {info.id} has ended{how}; `tuimon ls` lists the runs")
    return info


def follow(
    info: RunInfo, reader: RingReader, accepted: CommandState, until_s: float, clock: Clock
) -> CommandState:
    """Wait for the end of an accepted command's life; "expired" when it has none in time."""
    while True:
        alive = registry.is_alive(info)
        for record in records(reader):
            if isinstance(record, CommandState) and record.id == accepted.id:
                if record.state in ("applied", "refused", "expired"):
                    return record
            elif isinstance(record, Goodbye):
                return _expired(accepted, f"the training ended first ({record.kind})")
        if not alive:
            return _expired(accepted, "the training ended first")
        if clock() >= until_s:
            return _expired(
                accepted,
                "accepted, but no update was attempted in time; it is applied when one is",
            )
        time.sleep(_POLL_S)


def records(reader: RingReader) -> Iterator[Record]:
    """What is new in a ring; what does not decode is for other readers to count."""
    while payloads := reader.read():
        for payload in payloads:
            with contextlib.suppress(msgspec.DecodeError):
                yield decode(payload)


def print_outcome(state: CommandState, *, as_json: bool) -> int:
    """Print what became of a command; the exit status."""
    if as_json:
        click.echo(json.dumps(outcome(state)))
    elif state.state == "applied":
        click.echo(plain(sentence(state)))
    else:
        click.echo(f"tuimon: {plain(sentence(state))}", err=True)
    return EXIT_OK if state.state == "applied" else EXIT_REFUSED


def outcome(state: CommandState) -> dict[str, Any]:
    """The JSON shape of one command."""
    return {
        "command": state.command,
        "id": state.id,
        "state": state.state,
        "step": state.step,
        "old": state.old,
        "new": state.new,
        "reason": state.reason,
    }


def sentence(state: CommandState) -> str:
    """One command's fate for a person."""
    words = state.words or title_words(state.command)
    change = f": {changed}" if (changed := " → ".join(filter(None, (state.old, state.new)))) else ""
    reason = f"{',' if change else ':'} {state.reason}" if state.reason else ""
    if state.state == "applied":
        where = f" at step {state.step:,}" if state.step is not None else ""
        return f"{words} applied{where}{change}{reason}"
    return f"{words} {state.state}{reason}"


def print_log(target: Target, *, as_json: bool) -> None:
    """Every command the run was sent, oldest first, with the newest state of each."""
    if target.via is not None:
        from tuimon.cli import far

        entries = far.ledger(target.via, target.token)
    else:
        entries, remarks = _ledger_of(target.token)
        for remark in remarks:
            click.echo(f"tuimon: {remark}", err=True)
    if as_json:
        rows = [
            {
                **outcome(entry),
                "by": plain(entry.by, 200),
                "asked_at": iso(entry.asked_at_s),
                "arguments": arguments_of(entry),
            }
            for entry in entries
        ]
        click.echo(json.dumps(rows))
        return
    if not entries:
        click.echo(f"tuimon: run {plain(target.token, 200)} was sent no command", err=True)
    for entry in entries:
        when = iso(entry.asked_at_s) or DASH
        click.echo(plain(f"{when}  {entry.by or DASH}  {sentence(entry)}"))


def _ledger_of(token: str) -> tuple[list[CommandState], list[str]]:
    """The ledger of a run, also of one whose folder has been swept, and what is missing in it."""
    try:
        info = registry.find_run(token)
    except NoSuchRun:
        kept = ledger_files.kept_of_swept(token)
        if kept is None:
            raise
        return _settled(list(kept.states), alive=False), _remarks(kept, alive=False)
    kept = ledger_files.kept_of(info)
    return ledger(info), _remarks(kept, alive=registry.is_alive(info)) if kept else []


def _remarks(kept: Kept, *, alive: bool) -> list[str]:
    """What is not in a ledger, as far as that can be known."""
    remarks = []
    if kept.damaged:
        lines = f"{kept.damaged:,} line{'' if kept.damaged == 1 else 's'}"
        remarks.append(f"{lines} of the ledger could not be read")
    if not alive and not kept.is_closed:
        remarks.append("the end of the run is not in the ledger: what came last may be missing")
    return remarks


def ledger(info: RunInfo) -> list[CommandState]:
    """Newest state of each command; what never came to an end is "expired" once the run is."""
    kept = ledger_files.kept_of(info)
    states = list(kept.states) if kept is not None else []
    history = read_history(info.path / "history.bin")
    states += history.commands if history is not None else []
    alive = registry.is_alive(info)
    for rank in range(len(info.ranks)):
        with (
            contextlib.suppress(TuimonError),
            contextlib.closing(RingReader(info.ring(rank))) as ring,
        ):
            states += [each for each in records(ring) if isinstance(each, CommandState)]
    return _settled(states, alive=alive)


def _settled(states: list[CommandState], *, alive: bool) -> list[CommandState]:
    """The newest stage of each command, in the order in which they were asked for."""
    newest: dict[str, CommandState] = {}
    for state in states:
        known = newest.get(state.id)
        if known is None or known.state not in FINAL_STATES or state.state in FINAL_STATES:
            newest[state.id] = state
    if alive:
        return list(newest.values())
    return [
        _expired(state, "the training ended first") if state.state not in FINAL_STATES else state
        for state in newest.values()
    ]


def who_asks() -> str:
    """`user@host (tty)` for the ledger; not a credential."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    with contextlib.suppress(OSError, ValueError):
        return f"{user}@{socket.gethostname()} ({os.ttyname(sys.stdin.fileno())})"
    return f"{user}@{socket.gethostname()}"


def _expired(state: CommandState, reason: str) -> CommandState:
    return msgspec.structs.replace(state, state="expired", reason=reason)
