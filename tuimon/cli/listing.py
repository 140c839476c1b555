"""`tuimon ls`: the runs of this user on this host, alive and gone."""

from __future__ import annotations

import contextlib
import json
import time
from datetime import UTC, datetime
from typing import Any

import click

from tuimon.errors import TuimonError
from tuimon.feed import registry
from tuimon.feed.codec import decode
from tuimon.feed.registry import ExitInfo, RunInfo
from tuimon.feed.ring import RingReader, RingStatus
from tuimon.model.records import ENDED, RUNNING, STATE_NAMES, Goodbye
from tuimon.model.text import plain
from tuimon.model.units import DASH, count, duration_s

SILENT_AFTER_S = 30.0  # longer than nearly every step; the live view knows the run's own pace
_GONE = STATE_NAMES[ENDED]
_TAIL_RECORDS = 1 << 20


def print_runs(*, as_json: bool) -> None:
    """Print all runs, oldest first."""
    now_s = time.time()
    rows = [describe(info, now_s) for info in registry.list_runs()]
    if as_json:
        click.echo(json.dumps(rows))
    elif not rows:
        click.echo("no runs on this host; start one with: tuimon run script.py")
    else:
        click.echo(table(rows, now_s))


def describe(info: RunInfo, now_s: float) -> dict[str, Any]:
    """The JSON object of one run."""
    status = _status(info)
    alive = registry.is_alive(info)
    ended = None if alive else how_it_ended(info)
    step = status.step if status is not None else None
    return {
        "id": info.id,
        "name": info.name,
        "host": info.host,
        "pid": info.ranks[0].pid if info.ranks else None,
        "ranks": info.world_size,
        "state": _state(status, now_s) if alive else _GONE,
        "step": info.last_step if step is None else step,
        "started_at": datetime.fromtimestamp(info.started_at_s, UTC).isoformat(timespec="seconds"),
        "exit": None
        if ended is None
        else {"kind": ended.kind, "code": ended.code, "detail": ended.detail},
    }


def how_it_ended(info: RunInfo) -> ExitInfo:
    """What the scribe wrote down, else the training's own goodbye, else that it was killed."""
    if info.exit is not None:
        return info.exit
    goodbye: Goodbye | None = None
    with contextlib.suppress(TuimonError), contextlib.closing(RingReader(info.ring())) as reader:
        for payload in reader.read(_TAIL_RECORDS, max_s=1.0)[-8:]:
            with contextlib.suppress(ValueError):
                record = decode(payload)
                goodbye = record if isinstance(record, Goodbye) else goodbye
    if goodbye is None:
        return ExitInfo("killed", None, "the process ended without saying why")
    return ExitInfo(goodbye.kind, goodbye.code, goodbye.detail)


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
    return (
        plain(row["id"], 20),
        plain(row["name"], 30),
        row["state"],
        count(row["step"]),
        DASH if row["pid"] is None else str(row["pid"]),
        str(row["ranks"]),
        duration_s(max(0.0, age_s)),
        plain(how, 60),
    )


def _state(status: RingStatus | None, now_s: float) -> str:
    if status is None:
        return "silent"
    name = STATE_NAMES.get(status.state, STATE_NAMES[RUNNING])
    if status.state == RUNNING and now_s - status.beat_ns / 1e9 > SILENT_AFTER_S:
        return "silent"
    # It has said goodbye and is still there: its last `atexit` functions run.
    return STATE_NAMES[RUNNING] if name == _GONE else name


def _status(info: RunInfo) -> RingStatus | None:
    with contextlib.suppress(TuimonError), contextlib.closing(RingReader(info.ring())) as reader:
        return reader.status()
    return None
