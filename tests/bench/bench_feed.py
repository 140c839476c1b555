"""What publishing a step costs, as a ratio to copying and checksumming the same bytes.

Two yardsticks: into one buffer that stays in the cache, and into a map of the ring's size, place
after place, which is where a ring has to write.

    python -m tests.bench.bench_feed

Encoding is part of the figure. All sides run interleaved in this process, in short blocks; the
table prints the tenth percentile, which neighbours disturb least. Never a gate: the machine
decides the absolute times.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tuimon.feed.codec import encode
from tuimon.feed.ring import RingWriter
from tuimon.model.records import Step

ROUNDS, REPEATS = 1000, 10
ROOM = 16 << 20  # of ring and map: what is written place after place does not lie in a cache


def folder() -> str | None:
    """Where rings lie by default: in memory where there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def one(parameters: int) -> list[float]:
    """Seconds: publish so many norms; copy and checksum them into a map, into a hot buffer."""
    norms = np.random.default_rng(0).random(parameters, np.float32)
    with tempfile.TemporaryDirectory(dir=folder()) as home:
        ring = RingWriter.create(Path(home) / "1.ring", ROOM)
        plain = mmap.mmap(-1, ROOM)
        size = len(encode(_step(norms)))
        block, places = bytes(size), itertools.cycle(range(0, ROOM - size, size))

        def publish() -> None:
            ring.publish(encode(_step(norms)))

        def copy() -> None:
            zlib.crc32(block)
            place = next(places)
            plain[place : place + size] = block

        hot = bytearray(size)

        def copy_hot() -> None:
            zlib.crc32(block)
            hot[:] = block

        return _interleaved(publish, copy, copy_hot)


def _step(norms: np.ndarray) -> Step:
    return Step(
        step=1, time_ns=2, loss=0.5, grad_norm=1.0, lrs=[1e-3], norms=norms.tobytes(), step_s=0.1
    )


def _interleaved(*actions: Callable[[], None]) -> list[float]:
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(ROUNDS):
        for action, into in zip(actions, times, strict=True):
            start = time.perf_counter()
            for _ in range(REPEATS):
                action()
            into.append((time.perf_counter() - start) / REPEATS)
    return [statistics.quantiles(each, n=10)[0] for each in times]


def table() -> None:
    """Print the ratios."""
    print(f"{'parameters':>10} {'publish':>10} {'copy+CRC into':>14} {'':>10} {'ratio':>6}  budget")
    for parameters, budget in ((300, 3), (10_000, 2)):
        publish, *copies = one(parameters)
        for into, copy in zip(("ring-size map", "hot buffer"), copies, strict=True):
            print(
                f"{parameters:>10,} {publish * 1e6:>7.2f} µs {into:>14} {copy * 1e6:>7.2f} µs "
                f"{publish / copy:>6.2f}  ≤ {budget}"
            )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    table()
