"""One `System` record: host, processes of a run and accelerators, read at one moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from tuimon.model.records import DeviceReading, System


class DeviceReader(Protocol):
    """What reads accelerators, e.g. `nvidia.NvidiaReader`."""

    note: str

    def read(self) -> list[DeviceReading]: ...


class ProcessUsage:
    """CPU share and memory of one process, told from a later one with the same pid."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._process: Any = None
        self._before: tuple[float, float] | None = None  # clock, CPU seconds
        import psutil

        self._gone: type[Exception] = psutil.Error
        try:
            self._process = psutil.Process(pid)
        except psutil.Error:
            return

    def read(self) -> tuple[float | None, int | None]:
        """(CPU share since the last read, resident bytes); 1.0 is one core, None is unknown."""
        if self._process is None:
            return None, None
        try:
            if not self._process.is_running():
                self._process = None
                return None, None
            times = self._process.cpu_times()
            rss = int(self._process.memory_info().rss)
        except (self._gone, OSError):
            return None, None
        now, spent = self._clock(), float(times.user + times.system)
        before, self._before = self._before, (now, spent)
        if before is None or now <= before[0]:
            return None, rss
        return max(0.0, (spent - before[1]) / (now - before[0])), rss


class Sampler:
    """Reads a `System` record when asked to. Not shared between threads."""

    def __init__(
        self,
        *,
        trainer_pid: int,
        scribe_pid: int | None = None,
        devices: DeviceReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trainer = ProcessUsage(trainer_pid, clock)
        self._scribe = ProcessUsage(scribe_pid, clock) if scribe_pid is not None else None
        self._devices = devices
        self._has_cpu_before = False

    def read(self, time_s: float) -> System:
        """Everything that can be read now; `time_s` is the unix time to write in."""
        trainer_cpu, trainer_rss = self._trainer.read()
        scribe_cpu, scribe_rss = self._scribe.read() if self._scribe else (None, None)
        used, total = self._memory()
        devices = self._devices.read() if self._devices else []
        return System(
            time_s=time_s,
            devices=devices,
            device_note=self._devices.note if self._devices else "",
            host_cpu_frac=self._host_cpu(),
            host_memory_used_bytes=used,
            host_memory_total_bytes=total,
            trainer_cpu_frac=trainer_cpu,
            trainer_rss_bytes=trainer_rss,
            scribe_cpu_frac=scribe_cpu,
            scribe_rss_bytes=scribe_rss,
        )

    def _host_cpu(self) -> float | None:
        import psutil

        try:
            share = psutil.cpu_percent(interval=None) / 100
        except (psutil.Error, OSError):
            return None
        # The first answer of psutil has nothing to compare with and says 0.
        before, self._has_cpu_before = self._has_cpu_before, True
        return share if before else None

    @staticmethod
    def _memory() -> tuple[int | None, int | None]:
        import psutil

        try:
            memory = psutil.virtual_memory()
        except (psutil.Error, OSError):
            return None, None
        return int(memory.total - memory.available), int(memory.total)
