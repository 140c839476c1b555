"""The demo that explodes, untreated and treated: the same script, the same steps until the cure."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tuimon.demos import SCENARIOS
from tuimon.feed import registry
from tuimon.feed.codec import decode
from tuimon.feed.ring import RingReader
from tuimon.model.records import CLIP_ON, PAUSED, Step

SCRIPT = str(SCENARIOS["explode"].path)
STEPS = 1400
TREATED_FROM = 1050  # the loss is above 10 by then, and below 1,000 for every seed that was tried
SLOWLY_S = 0.01  # a step: leaves the time to pause long before TREATED_FROM


def ring_of(process: subprocess.Popen[str]) -> RingReader:
    """What the run publishes, from its beginning."""
    return RingReader(registry.find_run(str(process.pid)).ring())


def steps_of(process: subprocess.Popen[str]) -> list[Step]:
    """Every update, as it was published."""
    with contextlib.closing(ring_of(process)) as reader:
        records = [decode(payload) for payload in reader.read(100_000, max_s=30)]
        assert not reader.lost
    return [record for record in records if isinstance(record, Step)]


@contextlib.contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """A training under tuimon that can be reached."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tuimon", "run", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TUIMON_SCRIBE": "0"},
    )
    try:
        assert process.stderr is not None
        assert "tuimon attach" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def ctl(process: subprocess.Popen[str], *words: str) -> int:
    """The step at which `tuimon ctl` saw its command applied."""
    done = subprocess.run(
        [sys.executable, "-m", "tuimon", "ctl", str(process.pid), *words, "--json"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["state"] == "applied"
    return int(answer["step"])


def wait_until_paused_at(process: subprocess.Popen[str], step: int) -> None:
    """Return when the run stands at the gate of `step` or of the one after it."""
    with contextlib.closing(ring_of(process)) as reader:
        deadline = time.monotonic() + 90
        while (status := reader.status()).state != PAUSED or status.step < step:
            assert time.monotonic() < deadline, status
            time.sleep(0.02)


@pytest.mark.timeout(300)
def test_clipping_in_time_saves_what_explodes_without() -> None:
    steps = "--steps", str(STEPS)
    with (
        running(SCRIPT, "--delay", "0", *steps) as untreated,
        running(SCRIPT, "--delay", str(SLOWLY_S), *steps) as process,
    ):
        paused = ctl(process, "pause")
        assert paused < TREATED_FROM
        ctl(process, "step", str(TREATED_FROM - paused))
        wait_until_paused_at(process, TREATED_FROM - 1)
        applied = ctl(process, "clip", "on", "--max-norm", "1")
        ctl(process, "resume")
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        healed = steps_of(process)
        left, err = untreated.communicate(timeout=100)
        assert untreated.returncode == 0, err
        sick = steps_of(untreated)
    assert left.splitlines()[-1] == "final loss nan"

    assert [step.step for step in healed] == [step.step for step in sick] == list(range(STEPS))
    assert abs(applied - TREATED_FROM) <= 1
    # Without the cure it is the same training, bit for bit, and it has been climbing for long.
    assert [s.loss for s in healed[:applied]] == [s.loss for s in sick[:applied]]
    norms = [step.grad_norm or math.nan for step in sick]
    assert max(norms[100:300]) * 3 < max(norms[applied - 50 : applied])
    assert not math.isfinite(sick[-1].loss or 0.0)

    assert {step.clip for step in healed[applied:]} == {CLIP_ON}
    assert all((s.grad_norm_clipped or 0.0) <= 1.0001 for s in healed[applied:])
    assert all(math.isfinite(step.loss or math.nan) for step in healed)
    before = min(step.loss or math.inf for step in healed[applied - 10 : applied])
    final = float(out.splitlines()[-1].removeprefix("final loss "))
    assert final < 0.5 < before
