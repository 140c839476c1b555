"""The control socket: accepts, refuses, survives damage, floods and hung clients."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuimon.errors import NoSuchRun, Refused
from tuimon.feed.channel import MAX_CLIENTS, ControlServer, ask, frame, take_frame
from tuimon.model.commands import Pause, Request, SetMaxNorm
from tuimon.model.records import CommandState


def accept(request: Request) -> CommandState:
    return CommandState(id=request.id, command=request.command.title, state="accepted")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServer]:
    server = ControlServer(tmp_path / "control.sock", accept)
    server.start()
    yield server
    server.close()


@pytest.fixture
def address(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def test_a_command_is_accepted(server: ControlServer, address: Path) -> None:
    assert ask(address, Request("a1", "me", Pause())).state == "accepted"


def test_a_second_use_of_an_id_is_refused(server: ControlServer, address: Path) -> None:
    ask(address, Request("a1", "me", Pause()))
    answer = ask(address, Request("a1", "me", Pause()))
    assert answer.state == "refused"
    assert "replay" in answer.reason


def test_a_senseless_command_is_refused_with_its_reason(
    server: ControlServer, address: Path
) -> None:
    answer = ask(address, Request("a1", "me", SetMaxNorm(float("nan"))))
    assert answer.state == "refused"
    assert "finite" in answer.reason


def test_only_the_owner_may_use_the_socket(server: ControlServer, address: Path) -> None:
    assert address.stat().st_mode & 0o777 == 0o600


def test_nobody_listens(address: Path) -> None:
    with pytest.raises(NoSuchRun):
        ask(address, Request("a1", "me", Pause()))


def test_close_removes_the_socket_and_ends_the_thread(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "control.sock", accept)
    server.start()
    server.close()
    server.close()
    assert not (tmp_path / "control.sock").exists()
    with pytest.raises(NoSuchRun):
        ask(tmp_path / "control.sock", Request("a1", "me", Pause()))


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        frame(b"\x93\x01")[:-1] + b"\xff",
        b"TUIC" + b"\xff" * 8,
        frame(b"not messagepack"),
        frame(msgspec.msgpack.encode(["id", "me", [99], 0.0])),
    ],
)
def test_a_damaged_frame_closes_the_connection_and_nothing_else(
    server: ControlServer, address: Path, junk: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(address))
        client.settimeout(10)
        client.sendall(junk)
        assert client.recv(100) == b""
    assert ask(address, Request("after", "me", Pause())).state == "accepted"
    assert server.damaged_frames == 1


def test_hung_clients_give_way_to_new_ones(server: ControlServer, address: Path) -> None:
    hung = []
    for _ in range(MAX_CLIENTS + 5):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(address))
        hung.append(client)
    assert ask(address, Request("new", "me", Pause())).state == "accepted"
    for client in hung:
        client.close()


def test_what_was_asked_by_somebody_who_left_is_not_done(tmp_path: Path) -> None:
    asked: list[str] = []
    listening, path = threading.Event(), tmp_path / "control.sock"

    def note(request: Request) -> CommandState:
        asked.append(request.id)
        listening.wait(10)
        return accept(request)

    server = ControlServer(path, note)
    server.start()
    try:
        with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as gone:
            for client, name in ((busy, "busy"), (gone, "gone")):
                client.connect(str(path))
                request = Request(name, "me", Pause())
                client.sendall(frame(msgspec.msgpack.encode(request)))
                while not asked:
                    os.sched_yield()
        listening.set()
        ask(path, Request("after", "me", Pause()))
        assert asked == ["busy", "after"]
    finally:
        server.close()


def test_a_failing_monitor_answers_and_lives(tmp_path: Path) -> None:
    def fail(request: Request) -> CommandState:
        raise ZeroDivisionError

    server = ControlServer(tmp_path / "control.sock", fail)
    server.start()
    try:
        for name in ("a", "b"):
            answer = ask(tmp_path / "control.sock", Request(name, "me", Pause()))
            assert answer.state == "refused"
            assert "ZeroDivisionError" in answer.reason
    finally:
        server.close()


def test_a_path_longer_than_a_socket_name_works(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    server = ControlServer(folder / "control.sock", accept)
    server.start()
    try:
        assert ask(folder / "control.sock", Request("a", "me", Pause())).state == "accepted"
    finally:
        server.close()


def test_a_forked_child_holds_no_descriptor_of_ours(server: ControlServer, address: Path) -> None:
    ask(address, Request("a1", "me", Pause()))
    pid = os.fork()
    if pid == 0:
        names = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        ours = server._listener is None and server._selector is None
        os._exit(0 if ours and not any("control" in name for name in names) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert ask(address, Request("a2", "me", Pause())).state == "accepted"


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(1, 7))
def test_frames_survive_any_cutting(payloads: list[bytes], cut: int) -> None:
    stream = b"".join(frame(each) for each in payloads)
    buffer, seen = bytearray(), []
    for start in range(0, len(stream), cut):
        buffer += stream[start : start + cut]
        while (payload := take_frame(buffer)) is not None:
            seen.append(payload)
    assert seen == payloads


@given(st.binary(min_size=1, max_size=60), st.integers(0, 10_000))
def test_a_flipped_bit_is_never_accepted(payload: bytes, where: int) -> None:
    damaged = bytearray(frame(payload))
    damaged[where // 8 % len(damaged)] ^= 1 << where % 8
    with contextlib.suppress(Refused):
        assert take_frame(damaged) is None
