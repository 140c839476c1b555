"""What recording a step costs, and how long opening and seeking a long recording takes.

    python -m tests.bench.bench_recorder [--steps 1000000]

Recording: bytes a step, and time of the scribe a step with writing, checkpoints and thinning, once
below the bound and once far above it. Seeking: from the key until the picture is there, beside
reading the recording once from the page cache. Never a gate.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import encode
from tuimon.feed.recorder import MAX_BYTES, Recorder
from tuimon.feed.recording import read_recording
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.model.records import LayerTable, Step
from tuimon.view.replay import END, ReplaySession

PID = 1
INFO = RunInfo("bench", "bench", "here", 0, "/x", ranks=[RankInfo(0, PID, 1, "1.ring")])
TURN = 50  # records between two looks of the scribe


class Bench:
    """A recorder, and the time that it takes."""

    def __init__(self, folder: Path, parameters: int, max_bytes: int) -> None:
        self.parameters = parameters
        self.spent_s = 0.0
        self._chronicle = Chronicle(INFO.id)
        self._random = np.random.default_rng(0)
        self._norms = [self._random.random(parameters, np.float32).tobytes() for _ in range(64)]
        self.recorder = Recorder(folder, INFO, PID, max_bytes=max_bytes, keep_free_bytes=0)
        table = LayerTable(0, [f"block.{i // 4}.weight{i % 4}" for i in range(parameters)])
        self._chronicle.add(table)
        self.recorder.append(encode(table), 1)

    def record(self, steps: int, *, tells: int = 0) -> int:
        """So many steps; their bytes."""
        written = 0
        for start in range(0, steps, TURN):
            records = [self._step(step) for step in range(start, min(steps, start + TURN))]
            payloads = [encode(each) for each in records]
            written += sum(map(len, payloads))
            for each in records:
                self._chronicle.add(each)
            began_s = time.perf_counter()
            for at, payload in enumerate(payloads, start):
                self.recorder.append(payload, at)
            self.recorder.flush()
            if self.recorder.is_full:
                seen = None
                if self.recorder.wants_checkpoint:
                    seen = self._chronicle.snapshot(
                        up_to_sequence=start, scribe_sequence=0, written_at_s=0.0
                    )
                self.recorder.begin(seen, self._chronicle.last_step)
            self.recorder.thin(math.inf)
            self.spent_s += time.perf_counter() - began_s
            if tells and start % tells == 0:
                print(f"  … {start:,} steps", flush=True)
        self.recorder.close()
        return written

    def _step(self, step: int) -> Step:
        loss = 1 / (1 + step / 1000) + 0.1 * float(self._random.random())
        norms = self._norms[step % len(self._norms)]
        return Step(
            step,
            10**18 + step * 10**8,
            loss=loss,
            grad_norm=loss * 2,
            lrs=[1e-3],
            norms=norms,
            step_s=0.1,
            data_s=0.01,
            forward_s=0.03,
            backward_s=0.05,
            optimizer_s=0.01,
        )


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def recording(home: Path) -> None:
    """The table of what recording costs."""
    print("| parameters | bound | steps | bytes a step | on disk | µs a step | of a core at 10/s |")
    print("|---|---|---|---|---|---|---|")
    for parameters, steps, max_bytes in (
        (300, 20_000, MAX_BYTES),
        (300, 60_000, 16 << 20),
        (10_000, 1_000, MAX_BYTES),
        (10_000, 5_000, 64 << 20),
    ):
        folder = home / f"{parameters}-{steps}"
        bench = Bench(folder, parameters, max_bytes)
        written = bench.record(steps)
        each_s = bench.spent_s / steps
        print(
            f"| {parameters:,} | {max_bytes >> 20} MiB | {steps:,} | {written // steps:,} "
            f"| {size_of(folder) / 2**20:.1f} MiB | {each_s * 1e6:.1f} | {each_s * 10:.2%} |",
            flush=True,
        )


def seeking(home: Path, steps: int, parameters: int) -> None:
    """The table of how long opening and seeking takes."""
    folder = home / f"long-{parameters}"
    bench = Bench(folder, parameters, MAX_BYTES)
    written = bench.record(steps, tells=steps // 4)
    size = size_of(folder)
    recorded = read_recording(folder)
    print(
        f"{steps:,} steps of {parameters} parameters: {written / 2**20:,.0f} MiB written, "
        f"{size / 2**20:.0f} MiB kept in {len(recorded.segments)} segments, "
        f"{recorded.left_out:,} records thinned out"
    )
    began_s = time.perf_counter()
    for file in folder.iterdir():
        file.read_bytes()
    print(f"reading it once: {time.perf_counter() - began_s:.2f} s")
    began_s = time.perf_counter()
    session = ReplaySession(read_recording(folder), playing=False)
    session.tick()
    print(f"open to the first picture: {time.perf_counter() - began_s:.2f} s")
    took = []
    for share in (1.0, 0.5, 0.9, 0.1, 0.99, 0.75, 0.25, 0.97):
        began_s = time.perf_counter()
        session.go_to(END if share == 1.0 else int(steps * share))
        while session.is_busy:
            session.tick()
        took.append(time.perf_counter() - began_s)
        print(f"seek to {share:.0%}: {took[-1]:.2f} s, step {session.step:,}")
    print(f"seek: median {statistics.median(took):.2f} s, worst {max(took):.2f} s", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=1_000_000)
    options.add_argument("--parameters", type=int, nargs="*", default=[300, 8])
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as home:
        recording(Path(home))
        for parameters in chosen.parameters:
            seeking(Path(home), chosen.steps, parameters)


if __name__ == "__main__":
    main()
