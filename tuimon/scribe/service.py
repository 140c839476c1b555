"""The scribe's loop: drain the rings of a run, keep history, diagnose, read devices, and end."""

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

from tuimon.diagnose.joined import Joined
from tuimon.errors import EXIT_NO_RUN, EXIT_OK, NoRoom, TuimonError
from tuimon.feed import jobs, ledger, registry
from tuimon.feed.history import write_history
from tuimon.feed.registry import RunInfo
from tuimon.hw.nvidia import NvidiaReader
from tuimon.hw.sampler import Sampler
from tuimon.model.records import AnyRecord, CommandState, Event, Hello, RingLost, Symptom
from tuimon.model.text import plain
from tuimon.scribe.conclusions import Conclusions
from tuimon.scribe.crew import Crew
from tuimon.scribe.ending import Ending, expired, tell_done
from tuimon.scribe.follower import Follower
from tuimon.scribe.outlet import Outlet
from tuimon.scribe.recording import FlightRecorder

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
        self._user_umask = user_umask
        self._clock = clock
        self._unix_time = unix_time
        self._crew = Crew(info, clock)
        self._ledger = ledger.LedgerFiles(info)
        self._recorder = FlightRecorder(info)
        self._outlet = Outlet(info.scribe_ring, os.getpid(), self._recorder.publish)
        self._devices = NvidiaReader(info.environ.get("CUDA_VISIBLE_DEVICES"))
        self._sampler = self._new_sampler()
        self._told: Joined | None = None
        self._told_kinds: set[tuple[str, int | None]] = set()
        self._conclusions = Conclusions()
        self._said: set[str] = set()
        self._next_system_s = now_s = clock()
        self._next_history_s = now_s + HISTORY_EVERY_S / 4
        self._next_folder_s = now_s + FOLDER_EVERY_S
        self._folder_is_gone = False
        self._is_behind = False
        self.wait_s = BUSY_WAIT_S

    def run(self) -> None:
        """Serve until the run has ended and its end is written."""
        while self.turn():
            if not self._is_behind:
                self._crew.wait(self.wait_s)

    def turn(self) -> bool:
        """Do what there is to do now; False when the run has ended and its end is written."""
        if self._crew.refresh():
            self._sampler = self._new_sampler()
        count = sum(self._follow(each) for each in self._crew.everybody)
        if self._crew.has_ended():
            self._end()
            return False
        self._keep_up(self._clock())
        if self._nobody_cares():
            self._close()
            return False
        self._is_behind = any(each.is_behind for each in self._crew.everybody)
        self.wait_s = BUSY_WAIT_S if count else min(IDLE_WAIT_S, self.wait_s * 1.5)
        return True

    def _new_sampler(self) -> Sampler:
        pid = self._crew.lead.me.pid
        return Sampler(trainer_pid=pid, scribe_pid=os.getpid(), devices=self._devices)

    def _follow(self, follower: Follower) -> int:
        """Take in what one process has written since; how many records that was."""
        was_over, count = follower.is_over, 0
        for records in follower.read(self._unix_time()):
            self._take(follower, records)
            count += len(records)
        if follower.is_over and not was_over and not self._crew.is_one:
            self._on_end_of(follower)
        return count

    def _take(self, follower: Follower, records: list[AnyRecord]) -> None:
        self._recorder.take(follower)
        for record in records:
            follower.chronicle.add(record)
            self._crew.see(follower, record)
            self._diagnose(follower, record)
            if isinstance(record, Hello) and self._outlet.problem:
                self._once("scribe-ring", f"no readings for viewers: {self._outlet.problem}")
            elif isinstance(record, CommandState):
                self._ledger.add(record)
        self._tell_findings()
        self._keep_ledger()
        self._tell_lost(follower)

    def _diagnose(self, follower: Follower, record: AnyRecord) -> None:
        engine, is_lead = follower.engine, follower is self._crew.lead
        try:
            found: list[AnyRecord] = [*engine.see(record)]
            remarks = engine.remarks(record)
        except Exception:
            # History and report are worth more than one detector.
            _log(traceback.format_exc())
            self._once("diagnosis", "a detector failed; see scribe.log")
            return
        verdict = engine.amp.changed()
        if is_lead:  # what all ranks have in common is told once
            found += [*remarks, *([verdict] if verdict is not None else [])]
        for each in found:
            self._tell(each)

    def _tell(self, record: AnyRecord) -> None:
        """Publish; of a symptom that several ranks show at a step, the first."""
        if isinstance(record, Symptom) and not self._crew.is_one:
            shown = record.kind, record.step
            if shown in self._told_kinds:
                return
            self._told_kinds.add(shown)
        self._publish(record)

    def _tell_findings(self) -> None:
        """Publish what the rules have concluded since the last time; readers merge by id."""
        if (joined := self._crew.joined()) is self._told:
            return
        self._told = joined
        for record in self._conclusions.changed(joined.findings, int(self._unix_time() * 1e9)):
            self._publish(record)

    def _keep_up(self, now_s: float) -> None:
        """Everything that has its own rhythm."""
        if problem := self._recorder.keep_up(self._crew.everybody, self._outlet.sequence):
            self._once("recording", problem)
        if now_s >= self._next_system_s:
            self._next_system_s = now_s + SYSTEM_EVERY_S
            self._publish(self._sampler.read(self._unix_time()))
            self._compare_ranks()
        if now_s >= self._next_folder_s:
            self._next_folder_s = now_s + FOLDER_EVERY_S
            self._look_after_folder()
        if now_s >= self._next_history_s:
            self._write_history()
            cost_s = self._clock() - now_s
            self._next_history_s = now_s + max(HISTORY_EVERY_S, cost_s / HISTORY_COST_FRAC)

    def _compare_ranks(self) -> None:
        if self._crew.is_one:
            return
        if (slow := self._crew.straggler()) is not None:
            self._event("warning", "straggler", f"rank {slow.rank}: {slow.words}")
        self._publish(self._crew.rows(self._unix_time()))

    def _on_end_of(self, follower: Follower) -> None:
        """A process of several has left."""
        if follower.goodbye is None and follower is not self._crew.launcher:
            self._event("critical", "killed", self._crew.words_of(follower))
        elif follower.goodbye is None and not all(each.is_over for each in self._crew.ranks):
            who = f"the process that spawned the ranks (pid {follower.me.pid})"
            self._event("warning", "launcher-gone", f"{who} {follower.exit.detail}; they go on")
        self._compare_ranks()

    def _end(self) -> None:
        self._look_after_folder()
        if self._nobody_cares():
            self._close()
            return
        for each in self._crew.everybody:
            for symptom in each.engine.close():
                self._tell(symptom)
        self._tell_findings()
        for remark in self._crew.lead.engine.last_remarks():
            self._publish(remark)
        for state in expired(self._crew.lead.chronicle.commands):
            self._publish(state)
            self._ledger.add(state)
        self._ledger.end()
        self._keep_ledger()
        how = self._crew.exit()
        if self._crew.is_one and how.kind == "killed":
            self._event("critical", "killed", f"the training {how.detail}")
        elif not self._crew.is_one:
            self._publish(self._crew.rows(self._unix_time()))
        ending = Ending(crew=self._crew, exit=how, user_umask=self._user_umask)
        problems = ending.write()
        for problem in problems:
            self._event("warning", "report", problem)
        self._write_history()
        of_pids = {each.me.pid: (each.exit, each.step_reached) for each in self._crew.everybody}
        self._crew.info = jobs.record_exits(self._crew.info, how, ending.last_step, of_pids)
        self._recorder.close(self._crew.info)
        tell_done(self._crew.info.path, problems)
        self._close()

    def _nobody_cares(self) -> bool:
        """The folder is gone, and no report was asked for elsewhere."""
        return self._folder_is_gone and not self._crew.info.report

    def _close(self) -> None:
        self._crew.close()
        self._recorder.close(self._crew.info)
        self._ledger.close()
        self._outlet.close()

    def _tell_lost(self, follower: Follower) -> None:
        lost = follower.intake.lost
        for reason, count in lost.items():
            more = count - follower.lost_said.get(reason, 0)
            if more > 0:
                # Not kept in the history, which has the count of the reader itself.
                self._outlet.publish(RingLost(more, f"scribe: {reason}"))
        follower.lost_said = lost

    def _publish(self, record: AnyRecord) -> None:
        self._outlet.publish(record)
        for each in self._crew.everybody:
            each.chronicle.add(record)

    def _event(self, severity: str, kind: str, text: str) -> None:
        step = self._crew.lead.chronicle.last_step
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
        for index, each in enumerate([] if self._folder_is_gone else self._crew.ranks):
            self._write_history_of(each, self._crew.info.history(index))

    def _write_history_of(self, follower: Follower, file: Path) -> None:
        written = follower.chronicle.records, file
        if written == follower.written:
            return
        history = follower.chronicle.snapshot(
            up_to_sequence=follower.intake.last_sequence,
            scribe_sequence=self._outlet.sequence,
            written_at_s=self._unix_time(),
            lost=follower.intake.lost,
        )
        try:
            write_history(file, history)
            follower.written = written
        except OSError as error:
            self._once("history", f"the history cannot be written: {error.strerror}")

    def _look_after_folder(self) -> None:
        """Put `run.json` back when somebody cleaned up; note when the whole folder is gone."""
        info = self._crew.info
        self._folder_is_gone |= not info.path.is_dir()
        if not self._folder_is_gone and not (info.path / "run.json").exists():
            with contextlib.suppress(NoRoom):
                registry.save(info)
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
