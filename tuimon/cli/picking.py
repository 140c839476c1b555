"""Which of several live runs is meant, where the command line names none."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from tuimon.cli.listing import describe, table
from tuimon.feed import registry
from tuimon.feed.registry import RunInfo
from tuimon.model.text import plain

MAX_SHOWN = 20  # fits a small terminal together with the question


def live_runs() -> list[RunInfo]:
    """Runs of this user on this host whose processes exist, oldest first."""
    return [info for info in registry.list_runs() if registry.is_alive(info)]


def ask_which(runs: Sequence[RunInfo]) -> RunInfo:
    """Let the person at the terminal pick one by its number; enter takes the newest."""
    newest_first = list(reversed(runs))[:MAX_SHOWN]
    now_s = time.time()
    lines = table([describe(info, now_s) for info in newest_first], now_s).splitlines()
    click.echo(f"     {lines[0]}")
    for number, line in enumerate(lines[1:], 1):
        click.echo(f"{number:>3}  {line}")
    if len(runs) > len(newest_first):
        click.echo(f"     and {len(runs) - len(newest_first)} older ones: `tuimon attach RUN`")
    wanted: int = click.prompt(
        "Watch which run", type=click.IntRange(1, len(newest_first)), default=1
    )
    return newest_first[wanted - 1]


def say_which(info: RunInfo, others: int) -> None:
    """Where nobody can be asked: which run is shown, and that there are others."""
    words = (
        f"tuimon: showing {plain(info.name, 40)} ({info.id}), the newest of {others + 1} live runs"
    )
    click.echo(f"{words}; name another: tuimon attach RUN", err=True)
