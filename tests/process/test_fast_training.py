"""A training of two thousand steps a second and more is watched without losing its extremes."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.process import fast_writer
from tests.process.fast_writer import SPIKE, extremes
from tests.process.stand_in import PATIENCE_S
from tuimon.tui.once import render_once
from tuimon.view.frame import HAS_NAN, HAS_NEG_INF, HAS_POS_INF, Frame
from tuimon.view.session import Session, watch_run

FRAME_S = 0.1  # a viewer at 10 Hz
BITS = {HAS_NAN: math.isnan, HAS_POS_INF: lambda v: v == math.inf,
        HAS_NEG_INF: lambda v: v == -math.inf}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@contextmanager
def writing(
    *, steps: int, rate: int, layers: int, capacity: int
) -> Iterator[tuple[subprocess.Popen[str], Session]]:
    """A writer that has begun, and a viewer that was there before."""
    words = [str(word) for word in (steps, rate, layers, capacity)]
    process = subprocess.Popen(
        [sys.executable, fast_writer.__file__, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    session = watch_run(process.stdout.readline().strip())
    session.tick()
    process.stdin.write("go\n")
    process.stdin.flush()
    try:
        yield process, session
    finally:
        session.close()
        process.stdin.close()
        if process.wait(PATIENCE_S) != 0:
            raise AssertionError("the writer failed")
        process.stdout.close()


def watched(session: Session, last: int) -> Frame:
    """Frames at 10 Hz until the last step is there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        begun = time.monotonic()
        frame = session.tick()
        if frame.step == last:
            return frame
        assert begun < deadline, (frame.step, frame.lost)
        time.sleep(max(0.0, begun + FRAME_S - time.monotonic()))


def test_two_thousand_steps_a_second_lose_nothing() -> None:
    steps = 4000
    with writing(steps=steps, rate=2000, layers=100, capacity=8 << 20) as (process, session):
        frame = watched(session, steps - 1)
        assert process.stdout is not None
        assert steps / float(process.stdout.readline()) > 1000  # noise of the host allowed
    assert not frame.lost and frame.series["loss"].count == steps
    loss = frame.series["loss"]
    assert loss.maximum == SPIKE
    for step, value in extremes(steps).items():
        found = loss.envelope(step, step + 1, 1)
        for bit, is_such in BITS.items():
            assert bool(found.flags[0] & bit) == is_such(value)
        assert (found.high[0] == SPIKE) == (value == SPIKE)
    whole = loss.envelope(0, steps, 100).flags
    assert all((whole & bit > 0).sum() == 2 for bit in BITS)


def test_what_a_viewer_cannot_take_is_counted_and_shown() -> None:
    """At full speed into a ring that is far too small."""
    steps = 30_000
    with writing(steps=steps, rate=0, layers=100, capacity=1 << 18) as (_, session):
        frame = watched(session, steps - 1)
    seen, lost = frame.series["loss"].count, sum(frame.lost.values())
    assert lost > 0 and seen + lost >= steps
    # Hello and the table may be among what was overwritten.
    assert seen + lost <= steps + 2
    assert f"{lost:,}" in render_once(frame) or "lost" in render_once(frame)
    assert np.isfinite(frame.series["loss"].minimum or math.nan)
