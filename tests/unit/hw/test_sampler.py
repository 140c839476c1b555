"""Readings of host and processes: real processes, a clock that the test turns."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tuimon.hw.sampler import ProcessUsage, Sampler
from tuimon.model.records import DeviceReading


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class OneDevice:
    note = "a note"

    def read(self) -> list[DeviceReading]:
        return [DeviceReading(0, "card")]


def test_a_first_reading_has_no_shares_and_the_second_has():
    clock = Clock()
    sampler = Sampler(
        trainer_pid=os.getpid(), scribe_pid=os.getpid(), devices=OneDevice(), clock=clock
    )
    first = sampler.read(5.0)
    assert (first.time_s, first.host_cpu_frac, first.trainer_cpu_frac) == (5.0, None, None)
    assert first.device_note == "a note"
    assert first.devices == [DeviceReading(0, "card")]
    assert first.trainer_rss_bytes == first.scribe_rss_bytes or first.scribe_rss_bytes
    assert first.host_memory_total_bytes is not None
    assert 0 < (first.host_memory_used_bytes or 0) < first.host_memory_total_bytes

    used = time.process_time() + 0.2
    while time.process_time() < used:
        pass
    clock.now += 0.4
    second = sampler.read(6.0)
    assert second.host_cpu_frac is not None
    assert second.trainer_cpu_frac is not None
    assert 0.4 < second.trainer_cpu_frac < 2


def test_a_process_that_is_gone_is_missing():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    usage = ProcessUsage(child.pid)
    assert usage.read()[1] is not None
    child.communicate(b"\n")
    assert usage.read() == (None, None)
    assert ProcessUsage(child.pid).read() == (None, None)


def test_without_devices_there_is_nothing_to_tell():
    system = Sampler(trainer_pid=os.getpid()).read(0.0)
    assert (system.devices, system.device_note) == ([], "")
    assert (system.scribe_cpu_frac, system.scribe_rss_bytes) == (None, None)
