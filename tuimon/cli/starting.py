"""`tuimon run`: this process becomes the training, or starts it in the background and watches."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from tuimon.errors import CannotStart, NoSuchRun
from tuimon.feed import private, registry
from tuimon.feed.ledger import read_ledger
from tuimon.feed.registry import RunInfo
from tuimon.model.text import plain

if TYPE_CHECKING:
    from tuimon.train.control.policy import Policy

APPEARS_WITHIN_S = 30.0  # a cold start of Python and of the scribe on a busy shared file system
STOPS_WITHIN_S = 10.0  # until the next boundary; then the process is told by signals
_POLL_S = 0.05
_MAX_WORDS = 4000  # bytes of what a training said before it could be watched


def become_the_training(
    argv: Sequence[str],
    *,
    name: str | None,
    report: str | None,
    policy: Policy | None = None,
    fail_on: str | None = None,
    ledger: str | None = None,
    total_steps: int | None = None,
) -> NoReturn:
    """Replace this process by the script: same pid, files, signals and environment.

    Raises:
        CannotStart: the report has no place, or the interpreter cannot be executed.
        UsageError: the ledger cannot be used.
    """
    words = launch_words(
        argv,
        name=name,
        report=report,
        policy=policy,
        fail_on=fail_on,
        ledger=ledger,
        total_steps=total_steps,
    )
    try:
        os.execv(words[0], words)
    except OSError as error:
        raise CannotStart(f"cannot execute {words[0]}: {error.strerror}") from error


def launch_words(
    argv: Sequence[str],
    *,
    name: str | None,
    report: str | None,
    policy: Policy | None = None,
    in_background: bool = False,
    fail_on: str | None = None,
    ledger: str | None = None,
    total_steps: int | None = None,
) -> list[str]:
    """The command line that a training runs as; plain Python where tuimon is switched off."""
    from tuimon.train.launch.launcher import command_line, own_interpreter_options
    from tuimon.train.session import is_disabled

    if is_disabled() and not in_background:
        return [sys.executable, *own_interpreter_options(), *argv]
    place = None if report is None else str(report_place(report))
    applied = None if ledger is None else str(read_ledger(ledger)[0])
    return command_line(
        list(argv),
        name=name,
        report=place,
        in_background=in_background,
        policy=policy,
        fail_on=fail_on,
        ledger=applied,
        total_steps=total_steps,
    )


def report_place(report: str) -> Path:
    """The absolute path of a report that can be written when the run is over.

    Raises:
        CannotStart: its folder is missing or read-only, or it is a folder itself.
    """
    place = Path(report).absolute()
    if problem := private.link_problem(place):
        raise CannotStart(f"the report {report}: {problem}; name another place")
    if place.is_dir():
        raise CannotStart(f"the report {report} is a folder; name a file")
    if not place.parent.is_dir():
        raise CannotStart(f"the report's folder {place.parent} does not exist; make it first")
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise CannotStart(f"the report {report} cannot be written; name another place")
    return place.parent.resolve() / place.name  # it is printed: without ".."


def run_and_attach(
    argv: Sequence[str],
    *,
    name: str | None,
    report: str | None,
    policy: Policy | None = None,
    ledger: str | None = None,
    total_steps: int | None = None,
) -> int:
    """Start the training in the background and open the viewer; `q` leaves it running."""
    from tuimon.cli import viewing
    from tuimon.train.session import is_disabled

    if is_disabled():
        raise CannotStart("TUIMON_DISABLE is set: there would be nothing to attach to; unset it")
    viewing.need_terminal("tuimon run script.py", "runs without one")
    process, info = start_in_background(
        argv, name=name, report=report, policy=policy, ledger=ledger, total_steps=total_steps
    )
    status = viewing.view(info)
    if process.poll() is None:
        click.echo(
            f"tuimon: {plain(info.name)} goes on as run {info.id}: tuimon attach {info.id}",
            err=True,
        )
    return status


def start_in_background(
    argv: Sequence[str],
    *,
    name: str | None,
    report: str | None,
    policy: Policy | None = None,
    ledger: str | None = None,
    total_steps: int | None = None,
) -> tuple[subprocess.Popen[bytes], RunInfo]:
    """Start a training in a session of its own; its output goes to `output.log` in its run folder.

    Raises:
        CannotStart: it ended, or could not be watched, before there was a run.
    """
    words = launch_words(
        argv,
        name=name,
        report=report,
        policy=policy,
        in_background=True,
        ledger=ledger,
        total_steps=total_steps,
    )
    # Until there is a run folder, what is said goes here: it is the reason when none appears.
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        until_s = time.monotonic() + APPEARS_WITHIN_S
        while time.monotonic() < until_s:
            ended = process.poll() is not None
            with contextlib.suppress(NoSuchRun):
                info = registry.find_run(str(process.pid))
                if info.main_pid == process.pid and info.output.exists():
                    return process, info
            if ended:
                break
            time.sleep(_POLL_S)
        said.seek(0)
        reason = plain(said.read(_MAX_WORDS).decode(errors="replace").strip())
    end(process)
    reason = reason.removeprefix("tuimon: ").replace(
        "training goes on unwatched", "script was not run"
    )
    raise CannotStart(reason or f"no run appeared within {APPEARS_WITHIN_S:g} s")


def stop(process: subprocess.Popen[bytes], info: RunInfo) -> None:
    """End a training that we started: by its next boundary, by signals if that does not come."""
    import uuid

    from tuimon.cli.control import who_asks
    from tuimon.errors import TuimonError
    from tuimon.feed import channel
    from tuimon.feed.asking import ANSWER_S
    from tuimon.model import commands

    request = commands.Request(uuid.uuid4().hex, who_asks(), commands.Stop(), time.time())
    with contextlib.suppress(TuimonError):
        channel.ask(info.control, request, ANSWER_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOPS_WITHIN_S)
    end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Make sure that a process of ours is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3.0)
