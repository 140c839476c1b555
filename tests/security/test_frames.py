"""Damaged frames at the control socket and beyond; clients that hang; what memory they may take."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import time
from pathlib import Path

import msgspec
import pytest

from tests.security import fuzz
from tuimon.errors import TuimonError
from tuimon.feed import channel, codec, history, relay
from tuimon.feed.ring import HEADER_BYTES, RingReader, RingWriter
from tuimon.model.commands import Pause, Request
from tuimon.model.records import Event

IN_PROCESS, AT_A_SOCKET = 40_000, 1_000  # a million: python -m tests.security.fuzz


def test_no_damaged_frame_is_applied() -> None:
    told = fuzz.decode_alone(IN_PROCESS, seed=1)
    assert sum(told.values()) == IN_PROCESS
    assert not [what for what in told if what.startswith("came through")], told
    assert min(told["no frame"], told["no request"], told["waits for more"]) > IN_PROCESS // 20


def test_viewers_are_served_among_them() -> None:
    told = fuzz.through_a_socket(AT_A_SOCKET, seed=2)
    assert told["came through: socket"] == told["applied twice"] == 0
    assert told["viewers served"] == AT_A_SOCKET // 50 + 1
    assert told["replays refused"] >= AT_A_SOCKET // 10 - 1
    assert told["longest wait in ms"] < 3000


def test_hung_clients_neither_block_nor_take_memory() -> None:
    """200 that never send, and 30 that begin a frame of megabytes and dribble."""
    with fuzz.listening() as there:
        begun = channel.frame(bytes(channel.MAX_FRAME_BYTES - 100))
        silent = [there.connect() for _ in range(200)]
        there.ask("among the silent")
        dribbling = [there.connect() for _ in range(30)]
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for client in dribbling:
            client.setblocking(False)
            with contextlib.suppress(OSError):
                for at in range(0, len(begun) - 1000, 1 << 18):
                    client.sendall(begun[at : at + (1 << 18)])
        slowest_s = 0.0
        for number in range(20):
            for client in dribbling:
                with contextlib.suppress(OSError):
                    client.send(b"x")
            slowest_s = max(slowest_s, there.ask(f"viewer {number}"))
        assert slowest_s < 3.0
        server = there.server
        assert len(server._buffers) <= channel.MAX_CLIENTS
        held = sum(map(len, list(server._buffers.values())))
        assert held <= channel.MAX_BUFFERED_BYTES + (1 << 16)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        assert grown_kib < 64 << 10
        for client in (*silent, *dribbling):
            client.close()


def test_a_frame_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "FRAME_WITHIN_S", 0.2)
    with fuzz.listening() as there, there.connect() as slow:
        whole = channel.frame(msgspec.msgpack.encode(Request("slow", "me", Pause())))
        slow.settimeout(5.0)
        began_s = time.monotonic()
        with pytest.raises(OSError):
            for at in range(len(whole)):
                slow.sendall(whole[at : at + 1])
                time.sleep(0.05)  # a byte now and then is what is tested
            assert slow.recv(1) == b"" and "slow" not in there.accepted
            raise OSError
        assert time.monotonic() - began_s < 5.0
        there.ask("after")
        assert "slow" not in there.accepted


def test_whoever_asks_without_end_leaves_the_interpreter_to_others() -> None:
    with fuzz.listening() as there, there.connect() as flood:
        payload = channel.frame(msgspec.msgpack.encode(Request("same", "me", Pause())))
        flood.setblocking(False)
        until_s, sent = time.monotonic() + 1.5, 0
        with contextlib.suppress(OSError):
            while time.monotonic() < until_s:
                try:
                    sent += flood.send(payload * 4)
                    flood.recv(1 << 16)
                except BlockingIOError:
                    os.sched_yield()
        assert there.accepted["same"] == 1
        assert there.ask("after") < 3.0


class Pipe:
    """Bytes as a relay's pipe gives them."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read(self, size: int, /) -> bytes:
        taken, self._data = bytes(self._data[:size]), self._data[size:]
        return taken


def test_what_a_relay_says_is_understood_or_refused() -> None:
    chance = random.Random(3)
    good = relay.packed(relay.Beat(1.0, True, True, 0, 0.0, True))
    asked = relay.packed(relay.Ask(Request("a", "me", Pause())))
    for _ in range(5_000):
        bits = bytearray(chance.choice((good, asked, chance.randbytes(40))))
        for _ in range(3):
            bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        for read in (relay.read_from_relay, relay.read_from_viewer):
            with contextlib.suppress(relay.Damaged):
                assert bytes(bits) in (good, asked) or read(Pipe(bytes(bits))) is None


def test_damaged_rings_and_histories_are_told_or_passed_over(tmp_path: Path) -> None:
    writer = RingWriter.create(tmp_path / "a.ring", 1 << 16)
    for step in range(300):
        writer.publish(codec.encode(Event(step, 1.0, "info", "x", "y" * 40)))
    writer.close()
    ring = (tmp_path / "a.ring").read_bytes()
    history.write_history(tmp_path / "h", history.History("abc", 3))
    kept = (tmp_path / "h").read_bytes()
    chance = random.Random(4)
    for turn in range(80):
        bits = bytearray(ring)
        for _ in range(20):
            span = 128 if turn % 2 else len(bits)
            bits[chance.randrange(span)] = chance.randrange(256)
        (tmp_path / "b.ring").write_bytes(bits[: HEADER_BYTES + chance.randrange(1 << 16)])
        with contextlib.suppress(TuimonError):
            reader = RingReader(tmp_path / "b.ring")
            for payload in reader.read(1000, 1.0):
                with contextlib.suppress(msgspec.DecodeError):
                    codec.decode(payload)
            reader.status()
            reader.close()
        bits = bytearray(kept)
        bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        assert history.history_from(bytes(bits)) is None
