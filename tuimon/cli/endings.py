"""How a command that has not come to its end leaves: one line on stderr and a documented status."""

from __future__ import annotations

import errno
import os
import sys

import click

from tuimon.errors import (
    EXIT_CUT,
    EXIT_DEFECT,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_USAGE,
    OutputClosed,
    TuimonError,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def status_after(error: BaseException) -> int:
    """Say what there is to say about an error, and give its status."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, click.ClickException):
        message = " ".join(error.format_message().split()).rstrip(".")
        complain(f"{message}; see `{_command_path(error)} --help`")
        return EXIT_USAGE
    if isinstance(error, BrokenPipeError | OutputClosed):
        _write_no_more()
        return EXIT_CUT
    if isinstance(error, TuimonError):
        complain(str(error))
        return error.exit_code
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        _write_no_more()
        complain(f"cannot write the output: {error.strerror}")
        return EXIT_REFUSED
    complain(f"unexpected {type(error).__name__}: {error}; please report this")
    return EXIT_DEFECT


def complain(text: str) -> None:
    """One `tuimon:` line on stderr, safe for a terminal."""
    from tuimon.model.text import plain

    click.echo(f"tuimon: {plain(text)}", err=True)


def _write_no_more() -> None:
    """The interpreter flushes once more when it leaves."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command_path(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if isinstance(context, click.Context) else "tuimon"
