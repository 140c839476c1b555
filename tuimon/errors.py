"""What the command line may print, and the exit code that goes with it.

Every error a user can meet is one of these: `str(error)` is the single line shown
after `tuimon:` and says what happened, where, and what to do next.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_DEFECT = 1  # of the viewer itself
EXIT_USAGE = 2
EXIT_NO_RUN = 3
EXIT_REFUSED = 4
EXIT_VERSION = 5
EXIT_FINDINGS = 6
EXIT_CANNOT_START = 125
EXIT_INTERRUPTED = 130
EXIT_CUT = 141  # as of a program that SIGPIPE ends: what it would have said is not known


class TuimonError(Exception):
    """Base of every error that ends a command with one line and a documented exit code."""

    exit_code = EXIT_USAGE


class UsageError(TuimonError):
    """The command line, or a value given on it, cannot be used."""

    exit_code = EXIT_USAGE


class NoSuchRun(TuimonError):
    """No run answers to the name, or the run is gone and the command needs a live one."""

    exit_code = EXIT_NO_RUN


class Refused(TuimonError):
    """The run exists but may not be used: another user's, permissions, or the trainer said no."""

    exit_code = EXIT_REFUSED


class IncompatibleVersion(TuimonError):
    """The other side speaks a format this version cannot read."""

    exit_code = EXIT_VERSION


class OutputClosed(TuimonError):
    """Whoever read the output has seen enough; nothing is said of it."""

    exit_code = EXIT_CUT


class CannotStart(TuimonError):
    """`tuimon run` could not start the script at all."""

    exit_code = EXIT_CANNOT_START


class NoRoom(TuimonError):
    """No folder can hold the ring: full, read-only or on a network file system."""

    exit_code = EXIT_REFUSED
