"""The launcher's side of a session: when it starts, what is found, how it ends.

Every failure in here costs the view of the run and one line on stderr, never the run.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tuimon.errors import EXIT_FINDINGS, CannotStart, TuimonError
from tuimon.feed import private, registry
from tuimon.feed.process import scribe_has_left
from tuimon.model.text import plain
from tuimon.model.verdict import verdict_lines
from tuimon.train.boundary import Stop, say
from tuimon.train.launch import script, tracebacks
from tuimon.train.launch.attendant import leaves_last, wants_scribe
from tuimon.train.launch.children import Heirs
from tuimon.train.launch.concluded import cause_lines, findings_from, trouble_with_report
from tuimon.train.launch.discovery import Arrival, Discovery, by_variable
from tuimon.train.session import Session, start_session

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

    from tuimon.model.ledger import Ledger
    from tuimon.train.control.policy import Policy
REPORT_WAIT_S = (
    10.0  # bound of design: a report that is not there by then is the scribe's to finish
)
CAUSE_WAIT_S = 2.0  # for the cause, at the end of a run that nobody wants a report of
_POLL_S = 0.02
MAX_DETAIL = 500


class Watching:
    """One watched run of a target, from before its first line to the last `atexit` call.

    Created and started in the main thread; `_found` runs in whatever thread makes an optimizer.
    """

    def __init__(
        self,
        target: script.Target,
        *,
        name: str | None,
        report: str | None,
        policy: Policy | None = None,
        fail_on: str | None = None,
        repeat: tuple[Path, Ledger] | None = None,
        total_steps: int | None = None,
    ) -> None:
        self._target = target
        self._total_steps = total_steps
        self._fail_on = fail_on
        self._status_by_findings = 0
        self._policy = policy
        self._repeat = repeat[1] if repeat else None
        self._name = name or target.title
        self._report = report
        self._pid = os.getpid()
        self._session: Session | None = None
        self._discovery: Discovery | None = None
        self._heirs = Heirs(self._name, ledger=str(repeat[0]) if repeat else "")
        self._kind, self._code, self._detail = "ok", 0, ""

    def start(self) -> None:
        """Start the session and wait for torch; on failure the script runs bare."""
        self._unfailing(self._start)

    def start_in_background(self) -> None:
        """Like `start`, with stdout and stderr in the run folder; without a run nothing starts."""
        self.start()
        if self._session is None or self._session.info is None:
            raise SystemExit(CannotStart.exit_code)
        log = self._session.info.output
        fd = private.open_own(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # somebody reads along

    def _start(self) -> None:
        argv = self._target.argv
        self._session = start_session(
            name=self._name, argv=argv, report=self._report, total_steps=self._total_steps
        )
        # Registered last before the script's own, so it runs after all of them.
        atexit.register(self._finish)
        if self._session.watched:
            heirs = self._heirs
            self._session.spawned = lambda: heirs.count
            if self._session.info is not None:
                self._heirs.run = self._session.info.folder
            self._heirs.arm()
            Arrival("torch", lambda: self._unfailing(self._torch_arrived)).watch()

    def _torch_arrived(self) -> None:
        from tuimon.train.monitor import arm

        if self._session is None:
            return
        discovery = Discovery(self._found, self._unfailing)
        arm(
            self._session,
            on_unknown_optimizer=discovery.unknown_optimizer,
            policy=self._policy,
            repeat=self._repeat,
        )
        discovery.arm()
        self._discovery = discovery
        clean_thread_exceptions()

    def _found(self, models: list[Module], optimizers: list[Optimizer]) -> None:
        from tuimon.train.monitor import watch_discovered

        if self._session is not None:
            watch_discovered(by_variable(models) or models, optimizers, self._session)

    def could_not_start(self, reason: str) -> None:
        """None of the script's code has run."""
        self._kind, self._code, self._detail = "exception", 125, reason

    def script_raised(self, error: BaseException) -> None:
        """Note how the script ends, and see to it that the traceback shows only its own frames."""
        self._kind, self._code, self._detail = how_it_ended(error)
        if self._kind == "exception" and self._session is not None:
            self._session.crashed(error)
        if isinstance(_interruption(error), Stop):
            say(f"{self._detail}; exit status {self._code}")
        if isinstance(error, Stop):
            raise SystemExit(self._code) from None
        if not isinstance(error, SystemExit):
            show_clean()

    def status_by_findings(self) -> int:
        """6 where the script ended well and `--fail-on` is met, else 0.

        Everything that a script may leave for its end has run when this returns: the status of a
        process cannot be changed any more by what `atexit` calls.
        """
        if self._fail_on is None or self._kind != "ok":
            return 0
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        return self._status_by_findings

    def _finish(self) -> None:
        self._unfailing(self._say_goodbye)

    def _say_goodbye(self) -> None:
        session = self._session
        if session is None or os.getpid() != self._pid:
            return
        session.finish(self._kind, code=self._code, detail=self._detail)
        if session.info is None:
            return
        is_last = leaves_last(session.info.path)
        if not is_last:
            self._report = self._fail_on = None  # who leaves last waits for the report of all
        if self._report is not None:
            folder = session.info.path
            if missing := self._await_report(folder) or trouble_with_report(folder):
                say(missing)
                self._report = None
        if self._fail_on is not None and self._kind == "ok":
            self._status_by_findings = self._judge_findings(session.info.path)
        causes = self._causes(session) if is_last else []
        whose = _rank_of(session)
        own = [f"{whose}{line}" for line in self._verdict(session)]
        last = self._last_line(session)
        for line in (*own, *causes, *([f"{whose}{last}"] if last else [])):
            say(line)

    def _judge_findings(self, folder: Path) -> int:
        """The exit status that the findings of the report ask for."""
        if missing := self._await_report(folder):
            say(f"--fail-on: {missing}")
            return 0
        found = findings_from(folder / "report.json", self._fail_on or "")
        if not found:
            return 0
        say(f"--fail-on {self._fail_on}: {', '.join(found)}; exit status {EXIT_FINDINGS}")
        return EXIT_FINDINGS

    def _causes(self, session: Session) -> list[str]:
        """The likeliest cause, where the scribe has concluded one by now."""
        if session.info is None or (session.step is None and session.first_non_finite is None):
            return []
        if self._kind == "stopped" and session.first_non_finite is None:
            return []  # somebody is waiting for the shell, and nothing asks for an explanation
        if not wants_scribe() or self._await_report(session.info.path, CAUSE_WAIT_S):
            return []
        return cause_lines(session.info.path / "report.json")

    def _await_report(self, folder: Path, limit_s: float = REPORT_WAIT_S) -> str:
        """Wait until the scribe has written the report; why it is not there, or ""."""
        if not wants_scribe():
            return "no report: TUIMON_SCRIBE=0 leaves out the process that writes it"
        done = folder / "report.done"
        until_s = time.monotonic() + limit_s
        while not done.exists():
            # Looked at again: it may have been told and left in between.
            if scribe_has_left(folder) and not done.exists():
                return f"no report: the scribe is gone; {folder / 'scribe.log'} may say why"
            if time.monotonic() > until_s:
                return f"the report is not written yet; it will be at {self._report}"
            time.sleep(_POLL_S)
        return ""

    def _verdict(self, session: Session) -> list[str]:
        """What an autopsy has found, where the script ends badly."""
        found = session.first_autopsy
        if found is None or found.first is None or found.trigger == "request":
            return []
        is_bad = session.first_non_finite is not None or self._kind == "exception"
        return verdict_lines(found) if is_bad else []

    def _last_line(self, session: Session) -> str | None:
        """One sentence when there is something to say about the run, and where to read on."""
        where = self._where_to_look(session)
        if session.first_non_finite is not None:
            what, step = session.first_non_finite
            ending = f"; it ended by {self._detail}" if self._kind == "exception" else ""
            return f"first non-finite value: {what} at step {step:,}{ending}; {where}"
        if self._kind == "exception" and self._code != CannotStart.exit_code:
            step_reached = (
                "before the first step" if session.step is None else f"after step {session.step:,}"
            )
            return f"the run ended {step_reached} by {self._detail}; {where}"
        if self._kind == "ok" and session.watch.off:
            return f"tuimon switched its watch off: {session.watch.off}"
        if self._kind == "ok" and session.step is None and self._heirs.count:
            if _has_ranks(session):
                return None
            return "no torch optimizer made a step in this process; `tuimon ls` has its children"
        if self._kind == "ok" and session.step is None:
            return "no torch optimizer made a step in this process; there was nothing to watch"
        return None

    def _where_to_look(self, session: Session) -> str:
        if self._report is not None:
            return f"the report is in {self._report}"
        return f"look back with: tuimon attach {session.info.id}" if session.info else ""

    def _unfailing(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            say(f"{text}; the training goes on without that part of the watch")
            if self._session is not None:
                self._session.watch.part_failed(text)


def _rank_of(session: Session) -> str:
    """Whose line it is, where several ranks write to one terminal."""
    with contextlib.suppress(TuimonError):
        info = None if session.info is None else registry.load(session.info.path)
        if info is not None and info.world_size > 1:
            return f"rank {session.rank}: "
    return ""


def _has_ranks(session: Session) -> bool:
    """Whether spawned children are the ranks of this run."""
    with contextlib.suppress(TuimonError):
        return session.info is not None and registry.load(session.info.path).launcher is not None
    return False


def how_it_ended(error: BaseException) -> tuple[str, int, str]:
    """(kind, exit status, detail) of a script that was left by `error`, as the report has it."""
    detail = plain(f"{type(error).__name__}: {error}", MAX_DETAIL)
    if isinstance(error, KeyboardInterrupt):
        return "stopped", 130, str(error) or type(error).__name__
    if not isinstance(error, SystemExit):
        return "exception", 1, detail
    if error.code is None or error.code == 0:
        return "ok", 0, ""
    status = error.code & 0xFF if isinstance(error.code, int) else 1
    if (interruption := _interruption(error)) is not None:
        return "stopped", status, str(interruption) or type(interruption).__name__
    return "exception", status, detail


def _interruption(error: BaseException) -> BaseException | None:
    """The KeyboardInterrupt that ends a script, also where the script turns it into an exit."""
    if isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt):
        return error.__context__
    return error if isinstance(error, KeyboardInterrupt) else None


def show_clean() -> None:
    """Put ourselves before `sys.excepthook` for the one exception that is about to be shown."""
    shown = getattr(sys, "excepthook", None)
    if shown is None:
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        sys.excepthook = shown
        with contextlib.suppress(Exception):
            tracebacks.clean(error)
            sys.last_traceback = error.__traceback__
        try:
            shown(kind, error, error.__traceback__)
        except SystemExit:
            raise
        except BaseException as second:
            _show_both(second, error)
        script.forget_file(vars(sys.modules["__main__"]))

    sys.excepthook = hook


def _show_both(second: BaseException, error: BaseException) -> None:
    """What the interpreter prints when the user's own hook fails."""
    tracebacks.clean(second)
    print("Error in sys.excepthook:", file=sys.stderr)
    sys.__excepthook__(type(second), second, second.__traceback__)
    print("\nOriginal exception was:", file=sys.stderr)
    sys.__excepthook__(type(error), error, error.__traceback__)


def clean_thread_exceptions() -> None:
    """Show exceptions of threads without our frames, by whoever shows them now."""
    shown = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            with contextlib.suppress(Exception):
                tracebacks.clean(args.exc_value)
            args = threading.ExceptHookArgs(
                (args.exc_type, args.exc_value, args.exc_value.__traceback__, args.thread)
            )
        shown(args)

    threading.excepthook = hook
