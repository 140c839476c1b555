"""`tuimon ctl RUN inspect` and the list of `breakpoint`: answers that are more than a state."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from tuimon.cli.control import Target, live_run, outcome, print_outcome, who_asks
from tuimon.cli.far import follow_frames, read_up
from tuimon.errors import EXIT_OK, UsageError
from tuimon.model.commands import Inspect
from tuimon.model.inspection import Inspected, InspectReply
from tuimon.model.text import plain
from tuimon.model.units import json_number
from tuimon.view.looks import figures, headline, title_of
from tuimon.view.session import Session, watch_relay, watch_run

Clock = Callable[[], float]


def inspect(
    target: Target,
    layer: str,
    *,
    timeout_s: float,
    as_json: bool,
    clock: Clock = time.monotonic,
) -> int:
    """Ask for a look at a layer, wait for it, print it; the exit status.

    Raises:
        UsageError: the command makes no sense for any training.
        NoSuchRun, Refused, IncompatibleVersion: nobody could be asked.
    """
    command = Inspect(layer)
    if problem := command.problem():
        raise UsageError(problem)
    with _session(target) as session:
        read_up(session, clock)
        state, frame = follow_frames(session, command, timeout_s=timeout_s, clock=clock)
    reply = next((each for each in frame.inspections if each.id == state.id), None)
    if reply is None:
        return print_outcome(state, as_json=as_json)
    if as_json:
        click.echo(json.dumps({**outcome(state), "reply": as_object(reply)}))
    else:
        click.echo("\n".join(lines(reply)))
    return EXIT_OK


def print_breakpoints(target: Target, *, as_json: bool) -> int:
    """The breakpoints of a run, by number."""
    with _session(target) as session:
        found = read_up(session, time.monotonic).breakpoints
    if as_json:
        click.echo(json.dumps([msgspec.to_builtins(_named(each)) for each in found]))
        return EXIT_OK
    if not found:
        click.echo("no breakpoint is set; `breakpoint CONDITION` sets one")
    for each in found:
        last = "" if each.last_step is None else f", last at step {each.last_step:,}"
        by = f"  by {each.by}" if each.by else ""
        click.echo(plain(f"{each.number}  {each.condition}  hits {each.hits:,}{last}{by}"))
    return EXIT_OK


def lines(reply: InspectReply) -> list[str]:
    """A reply for a person."""
    found = [headline(reply)]
    for item in reply.items:
        found += ["", title_of(item)]
        found += [f"  {each.word:<9}{each.value}" for each in figures(item)]
    if reply.notes:
        found += ["", *(plain(note, 400) for note in reply.notes)]
    return found


def as_object(reply: InspectReply) -> dict[str, Any]:
    """A reply for a script: every field by name, numbers that are not finite as words."""
    return {
        "layer": reply.layer,
        "kind": reply.kind,
        "step": reply.step,
        "took_s": reply.took_s,
        "notes": reply.notes,
        "tensors": [_item(each) for each in reply.items],
    }


def _item(item: Inspected) -> dict[str, Any]:
    named = _named(item)
    del named["histogram"]  # its counts are bytes; the screen draws them
    for key in ("bad", "outliers"):
        named[key] = [
            {"index": each.index, "value": json_number(each.value)} for each in named[key]
        ]
    return {key: json_number(v) if isinstance(v, float) else v for key, v in named.items()}


def _named(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


@contextlib.contextmanager
def _session(target: Target) -> Iterator[Session]:
    if target.via is not None:
        session = watch_relay(target.via, target.token, by=who_asks())
    else:
        session = watch_run(live_run(target.token), by=who_asks())
    try:
        yield session
    finally:
        session.close()
