"""A training loses its viewer, its scribe and all room on disk: its numbers stay bit for bit.

One watched training meets all of it, and a bare one says what the numbers are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.job import ROOT, wait_for
from tests.pty.terminal import Terminal
from tuimon.errors import TuimonError
from tuimon.feed import channel, ledger, registry
from tuimon.feed.codec import decode
from tuimon.feed.paths import MIN_RING_BYTES
from tuimon.feed.process import start_ticks
from tuimon.feed.registry import RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model import commands
from tuimon.model.commands import Request
from tuimon.model.records import AnyRecord, CommandState, Event

pytestmark = pytest.mark.timeout(240)

# Trains on for as many updates as it is told, then says what came out.
TRAINS = """
import sys, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
for line in sys.stdin:
    for _ in range(int(line)):
        x = torch.randn(8, 6)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x[:, :1] * 3)
        loss.backward()
        optimizer.step()
    print(loss.item().hex(), flush=True)
for parameter in model.parameters():
    print([value.hex() for value in parameter.flatten().tolist()])
"""


class Training:
    """The process, which trains when it is told to."""

    def __init__(self, script: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words, str(script)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ROOT_AND_LIGHT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []

    def train(self, updates: int) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(updates, file=self.process.stdin, flush=True)
        self.said.append(self.process.stdout.readline())
        assert self.said[-1], "it has ended"

    def end(self) -> tuple[str, str]:
        out, errors = self.process.communicate(timeout=100)
        return "".join(self.said) + out, errors

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


ROOT_AND_LIGHT = os.pathsep.join((str(Path(__file__).parent / "light"), str(ROOT)))


@pytest.fixture
def small_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """File systems of a few MiB in place of the run folders and of the state folder."""
    folders = [tmp_path / "small-runs", tmp_path / "small-state"]
    try:
        for folder, size in zip(folders, ("16m", "3m"), strict=True):
            folder.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(folder)]
            subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        for folder in folders:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
        pytest.skip("this user may mount no file system")
    monkeypatch.setenv("TUIMON_DIR", str(folders[0]))
    monkeypatch.setenv("XDG_STATE_HOME", str(folders[1]))
    yield folders
    for folder in folders:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no room for a single byte."""
    with (folder / "filling").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def records(ring: Path) -> list[AnyRecord]:
    with contextlib.suppress(TuimonError), contextlib.closing(RingReader(ring)) as reader:
        return [decode(payload) for payload in reader.read(100_000, 5.0)]
    return []


def ask(run: RunInfo, command: commands.Command) -> CommandState:
    return channel.ask(run.control, Request(uuid.uuid4().hex, "me", command, time.time()))


def events(run: RunInfo) -> dict[str, str]:
    """What the scribe tells of its own troubles, by kind."""
    told = [each for each in records(run.scribe_ring) if isinstance(each, Event)]
    return {each.kind: each.text for each in told}


def lose_the_viewer(run: RunInfo, shows: str) -> None:
    """A viewer is killed while it draws."""
    viewer = Terminal("-m", "tuimon", "attach", run.id)
    try:
        viewer.until(shows)
        os.kill(viewer.pid, signal.SIGKILL)
    finally:
        viewer.close()


def lose_all_room(run: RunInfo, watched: Training, folders: list[Path]) -> None:
    """Both disks are full from one update to the next; what needs room is refused in words."""
    own = ledger.places(run)[0]
    wait_for(lambda: own.exists() and b"applied" in own.read_bytes(), 20.0)
    for folder in folders:
        fill(folder)
    for _ in range(20):  # more than the page holds that the ledger has begun
        assert ask(run, commands.SetClip("user")).state == "accepted"
    dump = ask(run, commands.Dump(["0"], str(folders[1] / "dumps")))
    kept = ask(run, commands.SaveCheckpoint(str(folders[1] / "kept")))
    watched.train(29)
    fates = {each.id: each for each in records(run.ring()) if isinstance(each, CommandState)}
    for asked in (dump, kept):
        fate = fates[asked.id]
        assert fate.state == "refused" and " 0 B are free" in fate.reason, fate.reason
    wait_for(lambda: {"ledger", "history"} <= events(run).keys(), 30.0)
    assert all("No space left" in events(run)[kind] for kind in ("ledger", "history"))


def scribe_of(run: RunInfo) -> str | None:
    """Its pid, once it has told it; a busy machine starts it after the first steps."""
    with contextlib.suppress(OSError):
        return (run.path / "scribe.pid").read_text() or None
    return None


def test_the_numbers_stay_whatever_is_lost(tmp_path: Path, small_disks: list[Path]) -> None:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    bare = Training(script)
    watched = Training(script, "-m", "tuimon", "run", "--snapshot-every", "5")
    viewer: Terminal | None = None
    try:
        watched.train(30)
        (run,) = registry.list_runs()
        wait_for(lambda: scribe_of(run) is not None)
        scribe = int(scribe_of(run) or 0)

        lose_the_viewer(run, "step 29")
        watched.train(30)
        assert ask(run, commands.SetClip("user")).state == "accepted"
        watched.train(1)
        lose_all_room(run, watched, small_disks)

        os.kill(scribe, signal.SIGKILL)
        wait_for(lambda: start_ticks(scribe) is None, 20.0)
        watched.train(30)
        viewer = Terminal("-m", "tuimon", "attach", run.id)
        viewer.until("step 119")
        viewer.until("the scribe has ended: no readings")
        assert "the ledger cannot be written" in viewer.text
        for number in (10, 20):
            watched.train(number)
        for number in (30, 30, 1, 29, 30, 10, 20):
            bare.train(number)
        assert ask(run, commands.Pause()).state == "accepted"
        (out, said), (expected, errors) = watched.end(), bare.end()
    finally:
        if viewer is not None:
            viewer.close()
        watched.close()
        bare.close()
    assert out == expected
    assert (watched.process.returncode, bare.process.returncode) == (0, 0)
    theirs = "".join(
        line for line in said.splitlines(keepends=True) if not line.startswith("tuimon:")
    )
    assert theirs == errors


def test_where_there_is_no_room_from_the_beginning(tmp_path: Path, small_disks: list[Path]) -> None:
    fill(small_disks[0])
    script = tmp_path / "says.py"
    script.write_text("print('ran')")
    done = Training(script, "-m", "tuimon", "run").end()
    assert done[0] == "ran\n" and done[1].count("\n") == 1
    assert "only 0 KiB are free" in done[1] and "unwatched" in done[1]


def test_where_the_room_ends_while_a_run_is_made_none_is_listed(
    tmp_path: Path, small_disks: list[Path]
) -> None:
    fill(small_disks[0])
    with open(small_disks[0] / "filling", "r+b") as filling:
        filling.truncate(filling.seek(0, os.SEEK_END) - 2 * MIN_RING_BYTES)  # without `run.json`
    script = tmp_path / "says.py"
    script.write_text("print('ran')")
    done = Training(script, "-m", "tuimon", "run").end()
    assert done[0] == "ran\n" and "unwatched" in done[1]
    assert registry.list_runs() == []
