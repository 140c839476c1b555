"""`tuimon ls`: the runs of this user on this host, alive and gone."""

from __future__ import annotations

import contextlib
import json
import time
from datetime import UTC, datetime
from typing import Any

import click

from tuimon.config import price_per_hour
from tuimon.errors import TuimonError, UsageError
from tuimon.feed import recordings, registry
from tuimon.feed.codec import decode
from tuimon.feed.registry import ExitInfo, RankInfo, RunInfo
from tuimon.feed.ring import RingReader, RingStatus
from tuimon.model.records import HELD, PAUSED, STATE_NAMES, UNWATCHED, Goodbye
from tuimon.model.text import plain
from tuimon.model.units import DASH, count, duration_s, number
from tuimon.view.headers import GONE, header_of, state_of
from tuimon.view.waits import cost_of, waited

_TAIL_RECORDS = 1 << 20


def print_runs(*, as_json: bool, price: float | None = None) -> None:
    """Print all runs, oldest first; `price` is what an hour of a training costs."""
    now_s = time.time()
    if price is None:
        with contextlib.suppress(UsageError):  # no file of settings hides what is running
            price = price_per_hour()
    rows = [describe(info, now_s, price) for info in registry.list_runs()]
    if as_json:
        click.echo(json.dumps(rows))
    elif not rows:
        click.echo("no runs on this host; start one with: tuimon run script.py")
    else:
        click.echo(table(rows, now_s))
    if not as_json and (words := _replayable({row["id"] for row in rows if row["state"] == GONE})):
        click.echo(words)


def _replayable(gone: set[str]) -> str:
    """What of the runs that are gone can still be seen; "" where nothing was recorded."""
    kept = [each.info.id for each in recordings.list_recordings()]
    if not kept:
        return ""
    newest = next((each for each in reversed(kept) if each in gone), kept[-1])
    return f"{count(len(kept))} recorded: tuimon replay {plain(newest, 20)}, or replay --list"


def describe(info: RunInfo, now_s: float, price: float | None = None) -> dict[str, Any]:
    """The JSON object of one run."""
    alive = registry.is_alive(info)
    going = [each for each in info.ranks if registry.rank_is_alive(each)]
    headers = [header_of(info, each) for each in going or info.ranks]
    ended = None if alive else how_it_ended(info)
    waits_s = _waits_s(headers, now_s) if alive else None
    steps = [each.step for each in headers if each is not None and each.step is not None]
    return {
        "id": info.id,
        "name": info.name,
        "host": info.host,
        "pid": info.main_pid,
        "ranks": info.world_size,
        "state": state_of(headers, now_s) if alive else GONE,
        "step": max(steps, default=info.last_step),
        "started_at": datetime.fromtimestamp(info.started_at_s, UTC).isoformat(timespec="seconds"),
        "exit": None
        if ended is None
        else {"kind": ended.kind, "code": ended.code, "detail": ended.detail},
        "ranks_here": len(info.ranks),
        "lost_spawner": (registry.lost_spawner(info) or None) if alive else None,
        "waits_s": waits_s,
        "cost": cost_of(waits_s, price),
    }


def _waits_s(headers: list[RingStatus | None], now_s: float) -> float | None:
    """For how long the run has been paused or held; None when it is not."""
    since = [
        each.changed_ns / 1e9
        for each in headers
        if each is not None and each.state in (PAUSED, HELD)
    ]
    return max(0.0, now_s - min(since)) if since else None


def _cost(cost: float | None) -> str:
    return "" if cost is None else f", cost {number(cost, 3)}"


def how_it_ended(info: RunInfo) -> ExitInfo:
    """What the scribe wrote down, else the training's own goodbye, else that it was killed."""
    if info.exit is not None:
        return info.exit
    told = [info.launcher] if info.launcher else info.ranks
    goodbyes = {process.rank: _goodbye(info, process) for process in told}
    silent = [rank for rank, goodbye in goodbyes.items() if goodbye is None]
    if silent or not goodbyes:
        who = f"rank {silent[0]}" if len(goodbyes) > 1 else "the process"
        return ExitInfo("killed", None, f"{who} ended without saying why")
    ends = [ExitInfo(each.kind, each.code, each.detail) for each in goodbyes.values() if each]
    return next((each for each in ends if each.kind != "ok"), ends[0])


def _goodbye(info: RunInfo, process: RankInfo) -> Goodbye | None:
    """The last word of a process, where it has left one."""
    found: Goodbye | None = None
    ring = info.path / process.ring
    with contextlib.suppress(TuimonError), contextlib.closing(RingReader(ring)) as reader:
        for payload in reader.read(_TAIL_RECORDS, max_s=1.0)[-8:]:
            with contextlib.suppress(ValueError):
                record = decode(payload)
                found = record if isinstance(record, Goodbye) else found
    return found


def _ranks(row: dict[str, Any]) -> str:
    """How many there are; those of other hosts are in runs of their own there."""
    here, everywhere = row["ranks_here"], row["ranks"]
    return str(everywhere) if here >= everywhere else f"{here} of {everywhere}"


def table(rows: list[dict[str, Any]], now_s: float) -> str:
    """The runs as aligned text."""
    head = ("ID", "NAME", "STATE", "STEP", "PID", "RANKS", "AGE", "END")
    lines = [head, *(_cells(row, now_s) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: dict[str, Any], now_s: float) -> tuple[str, ...]:
    age_s = now_s - datetime.fromisoformat(row["started_at"]).timestamp()
    end = row["exit"]
    how = ""
    if end is not None:
        code = "" if end["code"] is None else f" {end['code']}"
        detail = f": {end['detail']}" if end["detail"] else ""
        how = f"{end['kind']}{code}{detail}"
    elif row["lost_spawner"]:
        how = f"pid {row['lost_spawner']}, which spawned it, is gone"
    elif row["state"] == STATE_NAMES[UNWATCHED]:
        how = f"tuimon doctor {row['id']} says why"
    return (
        plain(row["id"], 20),
        plain(row["name"], 30),
        f"{row['state']} {waited(row['waits_s'], None)}".rstrip() + _cost(row["cost"]),
        count(row["step"]),
        DASH if row["pid"] is None else str(row["pid"]),
        _ranks(row),
        duration_s(max(0.0, age_s)),
        plain(how, 60),
    )
