"""The scribe's loop: drain the trainer's ring, keep history, diagnose, read devices, and end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tuimon.diagnose.engine import Engine
from tuimon.diagnose.findings import Finding, record_of
from tuimon.errors import EXIT_NO_RUN, EXIT_OK, NoRoom, TuimonError
from tuimon.feed import ledger, registry
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.history import write_history
from tuimon.feed.registry import RunInfo
from tuimon.hw.nvidia import NvidiaReader
from tuimon.hw.sampler import Sampler
from tuimon.model.records import AnyRecord, CommandState, Event, Goodbye, Hello, RingLost
from tuimon.model.text import plain
from tuimon.scribe.ending import Ending, expired, how_it_ended, newest, tell_done
from tuimon.scribe.intake import READ_RECORDS, Intake
from tuimon.scribe.outlet import Outlet
from tuimon.scribe.trainer import Trainer

BUSY_WAIT_S = 0.05  # between two looks at a ring that moves: 20 a second
IDLE_WAIT_S = 0.4  # a ring that rests is looked at less and less often
SYSTEM_EVERY_S = 1.0
HISTORY_EVERY_S = 2.0
HISTORY_COST_FRAC = 0.02  # of the scribe's time, however large the history is
FOLDER_EVERY_S = 5.0


def serve(folder: str, user_umask: int) -> int:
    """Serve the run in `folder` to its end; the exit code of the scribe. Logs what goes wrong."""
    path = Path(folder)
    with contextlib.ExitStack() as stack:
        if not _only_one(path, stack):
            return EXIT_OK
        try:
            info = registry.load(path)
        except TuimonError as error:
            _log(str(error))
            return EXIT_NO_RUN
        try:
            Scribe(info, user_umask).run()
        except Exception as error:
            _log(traceback.format_exc())
            tell_done(path, [plain(f"the scribe failed: {type(error).__name__}: {error}")])
            return 1
    with contextlib.suppress(OSError):
        registry.sweep(time.time())
    ledger.sweep()
    return EXIT_OK


class Scribe:
    """One run, from its first record to its report. Owned by the only thread of its process.

    Attributes:
        wait_s: how long to rest before the next turn.
    """

    def __init__(
        self,
        info: RunInfo,
        user_umask: int = 0o077,
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._info = info
        self._user_umask = user_umask
        self._clock = clock
        self._unix_time = unix_time
        rank = info.ranks[0]
        self._trainer = Trainer(rank.pid, rank.start_ticks)
        self._intake = Intake(info.ring())
        self._outlet = Outlet(info.scribe_ring, os.getpid())
        self._engine = Engine(rank.rank)
        self._chronicle = Chronicle(info.id)
        self._ledger = ledger.LedgerFiles(info)
        devices = NvidiaReader(info.environ.get("CUDA_VISIBLE_DEVICES"))
        self._sampler = Sampler(trainer_pid=rank.pid, scribe_pid=os.getpid(), devices=devices)
        self._goodbye: Goodbye | None = None
        self._told: list[Finding] = []
        self._findings: dict[str, Finding] = {}
        self._said: set[str] = set()
        self._lost_said: dict[str, int] = {}
        self._written_records = -1
        now_s = clock()
        self._next_system_s = now_s
        self._next_history_s = now_s + HISTORY_EVERY_S / 4
        self._next_folder_s = now_s + FOLDER_EVERY_S
        self._folder_is_gone = False
        self._is_behind = False
        self.wait_s = BUSY_WAIT_S

    def run(self) -> None:
        """Serve until the run has ended and its end is written."""
        while self.turn():
            if not self._is_behind:
                self._trainer.wait(self.wait_s)

    def turn(self) -> bool:
        """Do what there is to do now; False when the run has ended and its end is written."""
        # Asked before the ring is read, so that what was written before the end is read after it.
        is_gone = self._trainer.is_gone
        records = self._intake.read()
        self._take(records)
        if self._goodbye is not None or (is_gone and not records):
            self._end()
            return False
        self._keep_up(self._clock())
        if self._nobody_cares():
            self._close()
            return False
        self._is_behind = len(records) >= READ_RECORDS
        self.wait_s = BUSY_WAIT_S if records else min(IDLE_WAIT_S, self.wait_s * 1.5)
        return True

    def _take(self, records: list[AnyRecord]) -> None:
        for record in records:
            self._chronicle.add(record)
            self._diagnose(record)
            if isinstance(record, Goodbye):
                self._goodbye = record
            elif isinstance(record, Hello) and self._outlet.problem:
                self._once("scribe-ring", f"no readings for viewers: {self._outlet.problem}")
            elif isinstance(record, CommandState):
                self._ledger.add(record)
        self._keep_ledger()
        self._tell_lost()

    def _diagnose(self, record: AnyRecord) -> None:
        try:
            found: list[AnyRecord] = [*self._engine.see(record), *self._engine.remarks(record)]
        except Exception:
            # History and report are worth more than one detector.
            _log(traceback.format_exc())
            self._once("diagnosis", "a detector failed; see scribe.log")
            return
        if (verdict := self._engine.amp.changed()) is not None:
            found.append(verdict)
        for each in found:
            self._publish(each)
        self._tell_findings()

    def _tell_findings(self) -> None:
        """Publish what the rules have concluded since the last time; readers merge by id."""
        if self._engine.findings is self._told:
            return
        self._told = self._engine.findings
        for finding in self._told:
            if self._findings.get(finding.id) != finding:
                self._findings[finding.id] = finding
                self._publish(record_of(finding, int(self._unix_time() * 1e9)))

    def _keep_up(self, now_s: float) -> None:
        """Everything that has its own rhythm."""
        if now_s >= self._next_system_s:
            self._next_system_s = now_s + SYSTEM_EVERY_S
            self._publish(self._sampler.read(self._unix_time()))
        if now_s >= self._next_folder_s:
            self._next_folder_s = now_s + FOLDER_EVERY_S
            self._look_after_folder()
        if now_s >= self._next_history_s:
            self._write_history()
            cost_s = self._clock() - now_s
            self._next_history_s = now_s + max(HISTORY_EVERY_S, cost_s / HISTORY_COST_FRAC)

    def _end(self) -> None:
        while records := self._intake.read_to_end():
            self._take(records)
        self._look_after_folder()
        if self._nobody_cares():
            self._close()
            return
        for symptom in self._engine.close():
            self._publish(symptom)
        self._tell_findings()
        for remark in self._engine.last_remarks():
            self._publish(remark)
        for state in expired(self._chronicle.commands):
            self._publish(state)
            self._ledger.add(state)
        self._keep_ledger()
        step_hint = self._intake.step_hint
        how = how_it_ended(self._goodbye, newest(self._chronicle.last_step, step_hint))
        if self._goodbye is None:
            self._event("critical", "killed", f"the training {how.detail}")
        ending = Ending(
            info=self._info,
            exit=how,
            engine=self._engine,
            chronicle=self._chronicle,
            step_hint=step_hint,
            lost=self._lost(),
            user_umask=self._user_umask,
        )
        problems = ending.write()
        for problem in problems:
            self._event("warning", "report", problem)
        self._write_history()
        self._info = registry.record_exit(self._info, how, ending.last_step)
        tell_done(self._info.path, problems)
        self._close()

    def _nobody_cares(self) -> bool:
        """The folder is gone, and no report was asked for elsewhere."""
        return self._folder_is_gone and not self._info.report

    def _close(self) -> None:
        self._intake.close()
        self._ledger.close()
        self._outlet.close()
        self._trainer.close()

    def _tell_lost(self) -> None:
        lost = self._intake.lost
        for reason, count in lost.items():
            more = count - self._lost_said.get(reason, 0)
            if more > 0:
                # Not kept in the history, which has the count of the reader itself.
                self._outlet.publish(RingLost(more, f"scribe: {reason}"))
        self._lost_said = lost

    def _lost(self) -> dict[str, int]:
        return self._chronicle.lost(self._intake.lost)

    def _publish(self, record: AnyRecord) -> None:
        self._outlet.publish(record)
        self._chronicle.add(record)

    def _event(self, severity: str, kind: str, text: str) -> None:
        step = self._chronicle.last_step
        self._publish(Event(step, self._unix_time(), severity, kind, plain(text)))
        _log(text)

    def _once(self, kind: str, text: str) -> None:
        """An event for a trouble that may repeat itself for hours."""
        if kind not in self._said:
            self._said.add(kind)
            self._event("warning", kind, text)

    def _keep_ledger(self) -> None:
        self._ledger.flush()
        if self._ledger.problem:
            self._once("ledger", self._ledger.problem)

    def _write_history(self) -> None:
        if self._chronicle.records == self._written_records or self._folder_is_gone:
            return
        history = self._chronicle.snapshot(
            up_to_sequence=self._intake.last_sequence,
            scribe_sequence=self._outlet.sequence,
            written_at_s=self._unix_time(),
            lost=self._intake.lost,
        )
        try:
            write_history(self._info.path / "history.bin", history)
            self._written_records = self._chronicle.records
        except OSError as error:
            self._once("history", f"the history cannot be written: {error.strerror}")

    def _look_after_folder(self) -> None:
        """Put `run.json` back when somebody cleaned up; note when the whole folder is gone."""
        path = self._info.path
        if not path.is_dir():
            self._folder_is_gone = True
            return
        if not (path / "run.json").exists():
            with contextlib.suppress(NoRoom):
                registry.save(self._info)
                self._event("info", "republished", "run.json had vanished and was written again")


def _only_one(folder: Path, stack: contextlib.ExitStack) -> bool:
    """Take `scribe.pid` for this process; False when another scribe has it or there is no room."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file: TextIO = os.fdopen(os.open(folder / "scribe.pid", flags, 0o600), "r+")
        stack.enter_context(file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        _log(f"not the scribe of {folder}: {error}")
        return False
    with contextlib.suppress(OSError):
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
    return True


def _log(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"tuimon: scribe: {text}", file=sys.stderr, flush=True)
