"""The one failure boundary between tuimon and the user's loop, and the exception `Stop`.

Imports no torch and touches nothing of the training.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from tuimon.model.text import plain
from tuimon.train.control.policy import NonFinite
from tuimon.train.signals import is_from_handler

MAX_FAILURES = 3  # of one tap before it is taken out of service

_Result = TypeVar("_Result")


class Stop(KeyboardInterrupt):
    """Raised in the training at a boundary because somebody asked the training to stop."""


def say(text: str) -> None:
    """Write one `tuimon:` line to stderr; a closed or missing stderr is no reason to fail."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"tuimon: {plain(text)}\n")
        sys.stderr.flush()


class Boundary:
    """Runs hook bodies so that none of their exceptions reaches the training.

    Counts failures by tap, says each cause once, and disarms a tap after `MAX_FAILURES`.
    `Stop` and `NonFinite` pass, which the user asked for, and so do KeyboardInterrupt, the other
    exceptions that are not ours to keep, and what a signal handler of the script's raises.
    Written by the training thread only; `inert` is also set in a forked child.

    Args:
        on_failure: told (tap, cause, whether it was the last one).
        lookers: how many modes of the user's are active that would see what a body does.
        unseen: what a body is run in while there are any.
    """

    def __init__(
        self,
        on_failure: Callable[[str, str, bool], None] | None = None,
        *,
        lookers: tuple[Callable[[], int], Callable[[], int]] = (int, int),
        unseen: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.inert = False
        self.failures: dict[str, int] = {}
        self.disarmed: set[str] = set()
        self._said: set[str] = set()
        self._on_failure = on_failure
        self._lookers = lookers
        self._unseen = unseen

    def start_over(self) -> None:
        """Another run: every tap is in service again, and says its failures anew."""
        self.failures.clear()
        self.disarmed.clear()
        self._said.clear()

    def guard(self, tap: str, body: Callable[..., _Result]) -> Callable[..., _Result | None]:
        """Return `body` with the boundary round it; a failed or disarmed body gives None."""
        disarmed = self.disarmed
        one_kind, other_kind = self._lookers

        @functools.wraps(body)
        def guarded(*args: Any) -> _Result | None:
            if self.inert or tap in disarmed:
                return None
            try:
                if one_kind() or other_kind():
                    with self._unseen():
                        return body(*args)
                return body(*args)
            except NonFinite:
                raise
            except Exception as error:
                if is_from_handler(error):
                    raise
                self.failed(tap, error)
                return None

        return guarded

    def within(self, tap: str, body: Callable[..., _Result]) -> Callable[..., _Result | None]:
        """The same for a body that only guarded ones call: modes have been looked for there."""
        disarmed = self.disarmed

        @functools.wraps(body)
        def guarded(*args: Any) -> _Result | None:
            if self.inert or tap in disarmed:
                return None
            try:
                return body(*args)
            except NonFinite:
                raise
            except Exception as error:
                if is_from_handler(error):
                    raise
                self.failed(tap, error)
                return None

        return guarded

    def failed(self, tap: str, error: Exception) -> None:
        """Account for one failure of `tap`."""
        count = self.failures.get(tap, 0) + 1
        self.failures[tap] = count
        last = count >= MAX_FAILURES
        if last:
            self.disarmed.add(tap)
        cause = f"{type(error).__name__}: {error}"
        key = f"{tap}|{type(error).__name__}"
        if key not in self._said:
            self._said.add(key)
            say(f"{tap} could not be watched ({cause}); the training is not affected")
        elif last:
            say(f"{tap} is no longer watched after {MAX_FAILURES} failures")
        if self._on_failure is not None:
            with contextlib.suppress(Exception):
                self._on_failure(tap, cause, last)
