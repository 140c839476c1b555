"""`tuimon doctor`: what keeps a viewer from its run, on this host and in this terminal."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from tuimon.cli.checks.check import BAD, Check, worst
from tuimon.cli.checks.host import check_host
from tuimon.cli.checks.runs import check_run, check_runs
from tuimon.cli.checks.terminal import check_terminal
from tuimon.errors import EXIT_FINDINGS, EXIT_OK, TuimonError
from tuimon.feed import registry
from tuimon.model.text import plain

SCHEMA = "tuimon.doctor/1"
_MARKS = {"ok": "ok  ", "warn": "warn", "bad": "BAD "}
_COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}


def examine(token: str | None, *, as_json: bool) -> int:
    """Look at everything, and at one run; the exit status.

    A run that cannot be found is the first finding, with the status that `attach` would have.
    """
    checks: list[Check] = []
    info = None
    status = EXIT_OK
    if token is not None:
        try:
            info = registry.find_run(token)
            checks = check_run(info)
        except TuimonError as error:
            words, _, todo = str(error).partition("; ")
            checks = [Check("run", plain(token, 40), BAD, words, todo)]
            status = error.exit_code
    checks += [*check_host(), *check_terminal(), *check_runs(besides=info)]
    if as_json:
        click.echo(
            json.dumps(
                {
                    "schema": SCHEMA,
                    "worst": worst(checks),
                    "checks": [asdict(each) for each in checks],
                }
            )
        )
    else:
        _print(checks)
    return status or (EXIT_FINDINGS if worst(checks) == BAD else EXIT_OK)


def _print(checks: list[Check]) -> None:
    width = max(len(each.name) for each in checks)
    topic = ""
    for each in checks:
        if each.topic != topic:
            topic = each.topic
            click.echo(topic)
        mark = _MARKS[each.level]
        if not os.environ.get("NO_COLOR"):
            mark = click.style(mark, fg=_COLOURS[each.level])
        click.echo(f"  {mark}  {plain(each.name, 60):<{width}}  {plain(each.said, 300)}")
        if each.todo:
            click.echo(f"        {'':<{width}}  → {plain(each.todo, 300)}")
    bad = sum(each.level == "bad" for each in checks)
    warned = sum(each.level == "warn" for each in checks)
    click.echo(f"{len(checks)} looked at: {bad} bad, {warned} to note")
