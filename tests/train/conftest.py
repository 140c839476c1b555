"""One process, one run per test: what a training published is read back from its real ring."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tuimon.feed import channel
from tuimon.feed.codec import decode
from tuimon.feed.ring import RingReader
from tuimon.model.commands import Command, Request
from tuimon.model.records import CommandState, Event, LayerTable, Loss, Record, Step
from tuimon.train import monitor as monitors
from tuimon.train.session import Session, current_session


class Feed:
    """Reads the run of the running test, and asks it for things."""

    def __init__(self) -> None:
        self._reader: RingReader | None = None
        self._run = ""
        self.records: list[Record] = []

    @property
    def session(self) -> Session:
        session = current_session()
        assert session is not None and session.info is not None
        return session

    def read(self) -> list[Record]:
        """Everything published so far."""
        info = self.session.info
        assert info is not None
        if self._reader is not None and self._run != info.id:  # closed and watched anew
            self._drain(self._reader)
            self.close()
        if self._reader is None:
            self._run = info.id
            self._reader = RingReader(info.ring())
        self._drain(self._reader)
        return self.records

    def _drain(self, reader: RingReader) -> None:
        while payloads := reader.read(10_000, 5.0):
            self.records += map(decode, payloads)

    def of(self, kind: type) -> list:
        return [record for record in self.read() if isinstance(record, kind)]

    @property
    def steps(self) -> list[Step]:
        return self.of(Step)

    @property
    def losses(self) -> list[Loss]:
        return self.of(Loss)

    @property
    def events(self) -> list[Event]:
        return self.of(Event)

    @property
    def table(self) -> LayerTable:
        return self.of(LayerTable)[-1]

    def states(self, request_id: str) -> list[CommandState]:
        return [state for state in self.of(CommandState) if state.id == request_id]

    def ask(self, command: Command) -> CommandState:
        """Through the real socket."""
        assert self.session.info is not None
        request = Request(uuid.uuid4().hex, "tester@here", command, time.time())
        return channel.ask(self.session.info.control, request)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    monkeypatch.setenv("TUIMON_SCRIBE", "0")
    torch.manual_seed(0)
    found = Feed()
    yield found
    for monitor in list(monitors._monitors):
        monitor.close()
    if monitors._wiring is not None:
        boundary = monitors._wiring.observer.boundary
        boundary.disarmed.clear()
        boundary.failures.clear()
        boundary._said.clear()
    session = current_session()
    if session is not None:
        session.finish("ok")
    found.close()


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A governor that always says yes, so that a short loop is sampled all through."""
    monkeypatch.setattr("tuimon.train.samples.governor.Governor.step", lambda self, *_, **__: True)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


def wait_for(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Return as soon as the condition holds; fail when it never does."""
    deadline_s = time.monotonic() + limit_s
    for pause_s in itertools.chain([0.001] * 20, itertools.repeat(0.01)):
        if condition():
            return
        assert time.monotonic() < deadline_s, "the condition never held"
        time.sleep(pause_s)


def folder_listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
