"""A training of several ranks, started for a test, and a viewer of all of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tuimon.feed import channel, registry
from tuimon.feed.codec import decode
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model.commands import Command, Request
from tuimon.model.records import CommandState, Event, Record, Step

SCRIPT = Path(__file__).with_name("replicas.py")
LIMIT_S = 240.0
_PLACES = {"torchrun": "told", "spawn": "all"}  # first argument of the script, else the rank
ROOT = Path(__file__).parents[2]
LIGHT = Path(__file__).with_name("light")


class Job:
    """The processes, and what each of them has published.

    Attributes:
        processes: that the test has started: the ranks by hand, else their launcher alone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        size: int = 2,
        kind: str = "ddp",
        group_limit_s: float = 600.0,
        script: Path = SCRIPT,
        launcher: str = "",
        scribe: bool = False,
        environs: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Start them.

        Args:
            folder: for what they write.
            size: how many ranks.
            kind: of model, a word of `replicas`.
            group_limit_s: time-out of the process group while the file `impatient` is there.
            script: of a rank.
            launcher: "" for ranks that watch themselves; "torchrun" or "spawn" below `tuimon run`.
            scribe: whether there is one.
            environs: of each rank, beside what all have; ranks without a launcher only.
        """
        self.folder = folder
        self.size = size
        environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TUIMON_SCRIBE": str(int(scribe)),
            "TUIMON_DIR": str(folder / "runs"),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": f"{LIGHT}:{ROOT}",
        }
        port = str(free_port())
        rest = [str(size), port, str(folder), kind, str(group_limit_s)]
        self.errors = [folder / f"stderr-{rank}" for rank in range(1 if launcher else size)]
        self.processes = []
        for rank, file in enumerate(self.errors):
            own = environs[rank] if environs else {}
            words = _below(launcher, size, port, script)
            words += [_PLACES.get(launcher, str(rank)), *rest]
            with file.open("wb") as errors:
                self.processes.append(
                    subprocess.Popen(words, env={**environ, **own}, stdout=errors, stderr=errors)
                )
        self.runs: list[RunInfo] = []
        self.ranks: list[RankInfo] = []
        self.records: list[list[Record]] = [[] for _ in range(size)]
        self._readers: list[RingReader] = []

    def __enter__(self) -> Job:
        try:
            for rank in range(self.size):
                ready = self.folder / f"ready-{rank}"
                wait_for(lambda file=ready: file.exists() or not self._is_whole())
                info = registry.load(Path(ready.read_text()))
                mine = next(each for each in info.ranks if each.rank == rank)
                self.runs.append(info)
                self.ranks.append(mine)
                self._readers.append(RingReader(info.path / mine.ring))
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        for reader in self._readers:
            reader.close()

    def _is_whole(self) -> bool:
        """Whether all that was started is still there."""
        return all(process.poll() is None for process in self.processes)

    def kill(self) -> None:
        """Whatever is left of it."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for file in (self.folder / "runs").glob("*/run.json"):
            for rank in registry.load(file.parent).ranks:
                if registry.rank_is_alive(rank):
                    os.kill(rank.pid, signal.SIGKILL)

    def kill_rank(self, rank: int) -> None:
        os.kill(self.ranks[rank].pid, signal.SIGKILL)

    def lives(self, rank: int) -> bool:
        return registry.rank_is_alive(self.ranks[rank])

    def read(self) -> list[list[Record]]:
        for rank, reader in enumerate(self._readers):
            while payloads := reader.read(10_000, 5.0):
                self.records[rank] += map(decode, payloads)
        return self.records

    def of(self, kind: type, rank: int) -> list[Any]:
        return [each for each in self.read()[rank] if isinstance(each, kind)]

    def step(self, rank: int) -> int:
        """The newest update that a rank has made; -1 before the first."""
        steps = self.of(Step, rank)
        return steps[-1].step if steps else -1

    def state(self, rank: int) -> int:
        return self._readers[rank].status().state

    def words(self, rank: int, kind: str) -> list[str]:
        return [event.text for event in self.of(Event, rank) if event.kind == kind]

    def ask(self, command: Command, rank: int = 0) -> CommandState:
        request = Request(uuid.uuid4().hex, "tester@here", command, time.time())
        return channel.ask(self.runs[rank].control, request)

    def report(self, rank: int = 0) -> dict[str, Any]:
        """Of the scribe of a rank's run, once it has written it."""
        folder = self.runs[rank].path
        wait_for((folder / "report.done").exists)
        return dict(json.loads((folder / "report.json").read_text()))

    def states(self, request_id: str, rank: int) -> list[CommandState]:
        return [state for state in self.of(CommandState, rank) if state.id == request_id]

    def outcome(
        self, command: Command, rank: int = 0, of: tuple[int, ...] | None = None
    ) -> list[CommandState]:
        """Ask, and wait for what becomes of it on each rank."""
        answer = self.ask(command, rank)
        assert answer.state == "accepted", answer.reason
        return self.settled(answer.id, of)

    def settled(self, request_id: str, of: tuple[int, ...] | None = None) -> list[CommandState]:
        def newest(rank: int) -> CommandState | None:
            states = self.states(request_id, rank)
            return states[-1] if states and states[-1].state != "accepted" else None

        ranks = range(self.size) if of is None else of
        wait_for(lambda: all(newest(rank) for rank in ranks))
        return [state for rank in ranks if (state := newest(rank)) is not None]

    def end(self) -> list[dict[str, Any]]:
        """After a stop: wait for all, and return what they have told at the end."""
        for process in self.processes:
            process.wait(LIMIT_S)
        return [json.loads((self.folder / f"end-{rank}").read_text()) for rank in range(self.size)]

    def stderr(self, rank: int) -> str:
        return self.errors[rank].read_text(errors="replace")


def _below(launcher: str, size: int, port: str, script: Path) -> list[str]:
    """The command line up to the script."""
    ours = ["-m", "tuimon", "run", "--snapshot-every=5"]
    match launcher:
        case "torchrun":
            agent = ["-m", "torch.distributed.run", f"--nproc-per-node={size}"]
            return [sys.executable, *agent, f"--master-port={port}", *ours, str(script)]
        case "spawn":
            return [sys.executable, *ours, str(script)]
    return [sys.executable, str(script)]


def same(states: list[CommandState]) -> CommandState:
    """What has become of a command, where it is the same on all ranks."""
    first = states[0]
    assert all((each.state, each.step) == (first.state, first.step) for each in states), states
    return first


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def wait_for(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Return as soon as the condition holds; fail when it never does."""
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s, "the condition never held"
        time.sleep(0.005)
