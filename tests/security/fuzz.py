"""Frames as a damaged line, a broken program or a stranger would send them; none may be applied.

    python -m tests.security.fuzz --frames 1000000 [--seed 0]

Most meet the decoders in this process; a share goes through a real socket. Prints what became of
them; the exit status is 1 if a frame that was damaged came through.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tuimon.errors import Refused
from tuimon.feed import channel
from tuimon.feed.channel import ControlServer, frame, take_frame
from tuimon.model.commands import Dump, Pause, Request, SetClip, SetMaxNorm, StepOnce
from tuimon.model.records import CommandState

KINDS = ("random", "oversized", "truncated", "bit-flipped", "spliced", "not a request")
_encode = msgspec.msgpack.Encoder().encode
_COMMANDS = (Pause(), StepOnce(3), SetClip("on", 1.0), SetMaxNorm(2.0), Dump(["a"], "/x"))


def whole(chance: random.Random, number: int) -> bytes:
    """A frame as a viewer sends it."""
    request = Request(f"r{number}", "me", chance.choice(_COMMANDS), 1.0)
    return frame(_encode(request))


def damaged(chance: random.Random, number: int) -> tuple[str, bytes]:
    """(kind, bytes) of a frame that must not be applied."""
    kind = KINDS[number % len(KINDS)]
    if kind == "random":
        return kind, chance.randbytes(chance.randrange(1, 60))
    good = whole(chance, number)
    if kind == "oversized":
        length = chance.randrange(channel.MAX_FRAME_BYTES + 1, 1 << 32)
        return kind, good[:4] + length.to_bytes(4, "little") + good[8:]
    if kind == "truncated":
        return kind, good[: chance.randrange(len(good))]
    if kind == "bit-flipped":
        bits = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 5))):
            bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        return kind, good[:-1] if bits == good else bytes(bits)
    if kind == "spliced":
        other = whole(chance, number + 1)
        at = chance.randrange(1, len(good))
        joined = good[:at] + other[at:]
        return kind, good[:-1] if joined.startswith((good, other)) else joined
    return kind, frame(chance.randbytes(chance.randrange(0, 40)))


def decode_alone(count: int, seed: int) -> Counter[str]:
    """Damaged frames through the decoders of the server, in this process."""
    chance, told = random.Random(seed), Counter[str]()
    decode = msgspec.msgpack.Decoder(Request).decode
    for number in range(count):
        kind, data = damaged(chance, number)
        buffer = bytearray(data)
        try:
            payload = take_frame(buffer)
            if payload is None:
                told["waits for more"] += 1
                continue
            decode(payload)
        except Refused:
            told["no frame"] += 1
        except msgspec.DecodeError:
            told["no request"] += 1
        else:
            told[f"came through: {kind}"] += 1
    return told


class Listening:
    """A real control socket that counts what it accepts."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "control.sock"
        self.accepted: Counter[str] = Counter()
        self.server = ControlServer(self.path, self._accept)
        self.server.start()

    def _accept(self, request: Request) -> CommandState:
        self.accepted[request.id] += 1
        return CommandState(request.id, request.command.title, "accepted")

    def connect(self) -> socket.socket:
        """A connection of somebody."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(10.0)
        while True:
            try:
                client.connect(str(self.path))
            except BlockingIOError:  # a full backlog, as Unix sockets tell it
                time.sleep(0.001)
            else:
                return client

    def ask(self, name: str) -> float:
        """Seconds until a well-behaved viewer has its answer."""
        began_s = time.monotonic()
        assert channel.ask(self.path, Request(name, "me", Pause())).state == "accepted", name
        return time.monotonic() - began_s


@contextlib.contextmanager
def listening() -> Iterator[Listening]:
    """A control socket in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        found = Listening(Path(folder))
        try:
            yield found
        finally:
            found.server.close()


def through_a_socket(count: int, seed: int) -> Counter[str]:
    """Damaged and repeated frames at a real socket, with viewers in between that must be served."""
    chance, told = random.Random(seed), Counter[str]()
    with listening() as there:
        for number in range(count):
            if number % 50 == 0:
                told["longest wait in ms"] = max(
                    told["longest wait in ms"], int(1e3 * there.ask(f"viewer{number}"))
                )
            kind, data = damaged(chance, number)
            if number % 10 == 9:
                kind, data = "replayed", whole(random.Random(seed), -1)
            with there.connect() as client, contextlib.suppress(OSError):
                client.sendall(data)
                if kind == "replayed":
                    answer = client.recv(4096)
                    told["replays refused"] += b"replay" in answer
        there.ask("after")
        known = {name for name in there.accepted if name.startswith(("viewer", "after"))}
        told["viewers served"] = len(known)
        told["applied twice"] = sum(times > 1 for times in there.accepted.values())
        told["came through: socket"] = len(there.accepted) - len(known) - ("r-1" in there.accepted)
    return told


def main() -> int:
    """Print what became of the frames."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began_s = time.monotonic()
    told = decode_alone(options.frames, options.seed)
    told += through_a_socket(max(100, options.frames // 200), options.seed)
    for what, times in sorted(told.items()):
        print(f"{times:>10,}  {what}")
    print(f"{time.monotonic() - began_s:>10.1f}  seconds")
    bad = any(what.startswith(("came through", "applied twice")) for what in told)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
