"""The flight recorder of a run: what the scribe reads and publishes, kept on disk as it comes.

A trouble with the disk ends the recording and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from tuimon.config import RecordSettings, read_settings
from tuimon.errors import UsageError
from tuimon.feed import recordings
from tuimon.feed.codec import encode
from tuimon.feed.frames import SCRIBE
from tuimon.feed.output import OutputTail
from tuimon.feed.recorder import KEEP_FREE_BYTES, MAX_BYTES, Recorder
from tuimon.feed.registry import RunInfo
from tuimon.scribe.follower import Follower

MIN_BYTES = 1 << 20
THIN_S = 0.02  # a turn: thinning a segment takes seconds, and the rings do not wait


class FlightRecorder:
    """A recorder for each process of a run. Belongs to the thread of the scribe."""

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._recorders: dict[int, Recorder] = {}
        self._settings, self._problem = _settings(info)
        self._is_on = self._settings.on is not False and os.environ.get("TUIMON_RECORD") != "0"
        self._output = OutputTail(info.output)
        self._is_closed = False

    def take(self, follower: Follower) -> None:
        """Record what was just read of a process."""
        if not self._is_on or not follower.intake.newest:
            return
        recorder = self._of(follower)
        for sequence, payload in follower.intake.newest:
            recorder.append(payload, sequence)

    def publish(self, payload: bytes, sequence: int) -> None:
        """Record what the scribe has just published, for whoever replays any of the processes."""
        for recorder in self._recorders.values():
            recorder.append(payload, sequence, SCRIBE)

    def keep_up(self, followers: list[Follower], scribe_sequence: int) -> str:
        """Write what was taken, begin a new segment where one is full, thin what is too much.

        Returns:
            Why something is not recorded, as a sentence; "" when all is.
        """
        for line in self._output.read() if self._recorders else []:
            self._recorders[min(self._recorders)].append(encode(line), 0, SCRIBE)
        for each in followers:
            recorder = self._recorders.get(each.me.pid)
            if recorder is None:
                continue
            recorder.flush()
            if recorder.is_full:
                seen = None
                if recorder.wants_checkpoint:
                    seen = each.chronicle.snapshot(
                        up_to_sequence=each.intake.last_sequence,
                        scribe_sequence=scribe_sequence,
                        written_at_s=time.time(),
                        lost=each.intake.lost,
                    )
                recorder.begin(seen, each.chronicle.last_step)
            recorder.thin(THIN_S)
        troubles = (each.problem for each in self._recorders.values())
        return self._problem or next((each for each in troubles if each), "")

    def close(self, info: RunInfo) -> None:
        """Write the rest, and what is known of the run at its end; delete what is too old.

        Safe to call twice.
        """
        self._output.close()
        if self._is_closed:
            return
        self._is_closed = True
        for recorder in self._recorders.values():
            recorder.close()
            recorder.describe(info)
        if self._recorders:
            recordings.keep_report(info)
        self._sweep()

    def _sweep(self) -> None:
        if not self._is_on:
            return
        days, runs = self._settings.max_age_days, self._settings.keep_runs
        with contextlib.suppress(OSError):
            recordings.sweep(
                time.time(),
                max_age_s=recordings.MAX_AGE_S if days is None else days * 86400.0,
                keep_runs=recordings.KEEP_RUNS if runs is None else runs,
                but=self._info.id,
            )

    def _of(self, follower: Follower) -> Recorder:
        pid = follower.me.pid
        if pid not in self._recorders:
            whole = MAX_BYTES if self._settings.max_bytes is None else self._settings.max_bytes
            several = max(1, self._info.ranks_here, len(self._info.processes))
            self._recorders[pid] = Recorder(
                recordings.folder_of(self._info),
                self._info,
                pid,
                max_bytes=max(MIN_BYTES, whole // several),
                keep_free_bytes=min(KEEP_FREE_BYTES, 2 * whole),
            )
        return self._recorders[pid]


def _settings(info: RunInfo) -> tuple[RecordSettings, str]:
    try:
        return read_settings(Path(info.cwd or "/")).record, ""
    except UsageError as error:
        return RecordSettings(), f"recorded as usual: {error}"
