"""The control socket: viewers ask, the trainer answers whether it accepts.

Frames are magic, length and CRC-32, then MessagePack; a damaged frame closes the connection and
is never applied. The peer must be the same user. One daemon thread in the trainer owns the
listening socket and all connections; it sleeps in `select`, runs no torch code, and calls
`on_request`, which may only validate and queue.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tuimon.errors import NoSuchRun, Refused
from tuimon.model.commands import Request
from tuimon.model.ledger import asked_of
from tuimon.model.records import CommandState

MAX_FRAME_BYTES = 4 << 20  # a dump of 10,000 layers with long names
MAX_CLIENTS = 32
MAX_REMEMBERED_IDS = 4096
MAX_ID_CHARS = 64
MAX_BUFFERED_BYTES = 12 << 20  # of frames that are not whole yet, over all connections
FRAME_WITHIN_S = 20.0  # from the first byte of a frame to its last
BUSY_TURNS = 200  # looks and answers a second; above that the thread rests after each
REST_S = 0.005
_FRAME = struct.Struct("<4sII")  # magic, length, crc
_MAGIC = b"TUIC"
_MAX_SOCKET_PATH = 100  # sun_path is 104 (macOS) or 108 bytes

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(CommandState)

OnRequest = Callable[[Request], CommandState]
OnRefused = Callable[[CommandState], None]


class ControlServer:
    """The trainer's end. `start()` binds and starts the thread, `close()` ends both.

    Args:
        path: where to listen.
        on_request: says what becomes of a request that makes sense.
        on_refused: told of one that makes none, which is answered here.
    """

    def __init__(
        self, path: Path, on_request: OnRequest, on_refused: OnRefused | None = None
    ) -> None:
        self._path = path
        self._on_request = on_request
        self._on_refused = on_refused
        self._begun_s: dict[socket.socket, float] = {}  # since when a frame is not whole
        self._turns, self._turns_since_s = 0, 0.0
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._buffers: dict[socket.socket, bytearray] = {}
        self._pid = os.getpid()
        self._listener: socket.socket | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None
        self._selector: selectors.BaseSelector | None = None
        self._inode = 0  # of the socket, to tell it from one that has taken its place
        self.damaged_frames = 0
        os.register_at_fork(after_in_child=self._forget)

    def start(self) -> None:
        """Bind and listen; raises OSError when the socket cannot be made.

        Who answered at this path before is not reached any more: a rank takes over from the
        process that spawned it.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        draft = self._path.with_name(f".{self._path.name}.{self._pid}")
        try:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
            with _address(draft) as address:
                listener.bind(address)
            os.chmod(draft, 0o600)
            listener.listen(64)
            listener.setblocking(False)
            self._inode = draft.stat().st_ino
            os.replace(draft, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()
            listener.close()
            raise
        self._listener = listener
        self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="tuimon-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the socket. Safe to call twice and in a forked child."""
        if os.getpid() != self._pid or self._thread is None or self._wake is None:
            return
        with contextlib.suppress(OSError):
            self._wake[1].send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(2.0)
        self._thread = None
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    @property
    def is_reachable(self) -> bool:
        """Whether there is still a socket at its path, this one or one that has taken over."""
        return self._path.exists()

    def _forget(self) -> None:
        """In a forked child: give up every descriptor, so that a reader sees the trainer's end."""
        for each in (self._listener, *(self._wake or ()), *self._buffers, self._selector):
            if each is not None:
                each.close()
        self._buffers.clear()
        self._begun_s.clear()
        self._listener = self._wake = self._thread = self._selector = None

    def _serve(self) -> None:
        assert self._listener is not None and self._wake is not None
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake[0], selectors.EVENT_READ)
            while self._turn(selector):
                pass
        for each in (self._listener, *self._wake, *self._buffers):
            each.close()

    def _turn(self, selector: selectors.BaseSelector) -> bool:
        """Serve what is ready; False when it is time to leave."""
        assert self._listener is not None and self._wake is not None
        self._rest()
        for key, _ in selector.select(self._patience_s()):
            if key.fileobj is self._wake[0]:
                return False
            if key.fileobj is self._listener:
                self._accept(selector)
                continue
            client = key.fileobj
            assert isinstance(client, socket.socket)
            if client in self._buffers and not self._receive(client):
                self._drop(client, selector)
        self._drop_unfinished(selector)
        return True

    def _rest(self) -> None:
        """Whoever asks without end must not keep the interpreter from the training."""
        now_s = time.monotonic()
        if now_s - self._turns_since_s > 1.0:
            self._turns, self._turns_since_s = 0, now_s
        self._turns += 1
        if self._turns > BUSY_TURNS:
            time.sleep(REST_S)

    def _patience_s(self) -> float | None:
        """How long a wait may be: until the first frame is late; None where none has begun."""
        if not self._begun_s:
            return None
        return max(0.0, min(self._begun_s.values()) + FRAME_WITHIN_S - time.monotonic())

    def _drop_unfinished(self, selector: selectors.BaseSelector) -> None:
        """Give up frames that do not come to their end, or that are too much together."""
        while self._begun_s:
            client = min(self._begun_s, key=self._begun_s.__getitem__)
            waited_s = time.monotonic() - self._begun_s[client]
            held_bytes = sum(map(len, self._buffers.values()))
            if waited_s < FRAME_WITHIN_S and held_bytes <= MAX_BUFFERED_BYTES:
                return
            self._drop(client, selector)

    def _drop(self, client: socket.socket, selector: selectors.BaseSelector) -> None:
        selector.unregister(client)
        del self._buffers[client]
        self._begun_s.pop(client, None)
        client.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        """Take in everybody who waits to be let in, up to a full house."""
        assert self._listener is not None
        for _ in range(MAX_CLIENTS):
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._welcome(client, selector)

    def _welcome(self, client: socket.socket, selector: selectors.BaseSelector) -> None:
        if peer_uid(client) != os.getuid():
            client.close()
            return
        if len(self._buffers) >= MAX_CLIENTS:
            # The oldest connection gives way, so that hung viewers cannot lock out new ones.
            self._drop(next(iter(self._buffers)), selector)
        client.setblocking(False)
        self._buffers[client] = bytearray()
        selector.register(client, selectors.EVENT_READ)
        # What it has sent already is answered before another connection can push it out.
        if not self._receive(client):
            self._drop(client, selector)

    def _receive(self, client: socket.socket) -> bool:
        """Read what is there and answer whole frames; False when the connection is over."""
        try:
            chunk = client.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not chunk:
            return False
        buffer = self._buffers[client]
        buffer += chunk
        try:
            while (payload := take_frame(buffer)) is not None:
                self._begun_s.pop(client, None)
                if _has_left(client):
                    return False
                client.sendall(frame(_encoder.encode(self._answer(payload))))
                self._rest()
        except (Refused, msgspec.DecodeError):
            self.damaged_frames += 1
            return False
        except OSError:
            return False
        if not buffer:
            self._begun_s.pop(client, None)
        else:
            self._begun_s.setdefault(client, time.monotonic())
        return True

    def _answer(self, payload: bytes) -> CommandState:
        request = _requests.decode(payload)
        title = request.command.title
        state = CommandState(
            id=request.id[:MAX_ID_CHARS],
            command=title,
            words=request.command.words,
            state="refused",
            by=request.by[:200],
            asked_at_s=request.asked_at_s,
        )
        if not 1 <= len(request.id) <= MAX_ID_CHARS:
            return msgspec.structs.replace(state, reason="the request id is empty or too long")
        if request.id in self._seen:
            return msgspec.structs.replace(state, reason="replay: this request was already made")
        self._seen[request.id] = None
        if len(self._seen) > MAX_REMEMBERED_IDS:
            self._seen.popitem(last=False)
        if reason := request.command.problem():
            refused = msgspec.structs.replace(state, reason=reason, asked=asked_of(request.command))
            if self._on_refused is not None:
                self._on_refused(refused)
            return refused
        try:
            return self._on_request(request)
        except Exception as error:
            reason = f"the monitor failed: {type(error).__name__}"
            return msgspec.structs.replace(state, reason=reason)


def ask(path: Path, request: Request, timeout_s: float = 5.0) -> CommandState:
    """Send one request and wait for the answer "accepted" or "refused".

    Raises:
        NoSuchRun: nobody listens.
        Refused: no permission, another user's training, or no answer in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        try:
            if path.is_symlink():
                raise Refused(f"{path} is a link; a training makes none there")
            _connect(client, path, timeout_s)
            if peer_uid(client) != os.getuid():
                raise Refused("the training belongs to another user")
            client.sendall(frame(_encoder.encode(request)))
            buffer = bytearray()
            while (payload := take_frame(buffer)) is None:
                chunk = client.recv(1 << 16)
                if not chunk:
                    raise Refused("the training closed the connection without an answer")
                buffer += chunk
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise NoSuchRun("the training does not listen any more; see `tuimon ls`") from error
        except PermissionError as error:
            raise Refused(f"no permission to talk to {path}") from error
        except TimeoutError as error:
            raise Refused(f"no answer from the training within {timeout_s:g} s") from error
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Refused("the training closed the connection without an answer") from error
    return _answers.decode(payload)


def _connect(client: socket.socket, path: Path, timeout_s: float) -> None:
    """Connect; a full backlog answers EAGAIN at once on Unix sockets, so it is tried again."""
    deadline = time.monotonic() + timeout_s
    with _address(path) as address:
        while True:
            try:
                return client.connect(address)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError from error
                time.sleep(0.005)


def _has_left(client: socket.socket) -> bool:
    """Whether the other side has closed: it was told that its request failed, so it must fail."""
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def frame(payload: bytes) -> bytes:
    """The payload as it travels."""
    return _FRAME.pack(_MAGIC, len(payload), zlib.crc32(payload)) + payload


def take_frame(buffer: bytearray) -> bytes | None:
    """Cut the first whole frame out of `buffer`; None when more bytes are needed.

    Raises:
        Refused: the bytes are not a frame, are too long or damaged.
    """
    if len(buffer) < _FRAME.size:
        if not _MAGIC.startswith(bytes(buffer[: len(_MAGIC)])):
            raise Refused("not a frame of tuimon")
        return None
    magic, length, crc = _FRAME.unpack_from(buffer)
    if magic != _MAGIC or length > MAX_FRAME_BYTES:
        raise Refused("not a frame of tuimon, or too long")
    if len(buffer) < _FRAME.size + length:
        return None
    payload = bytes(buffer[_FRAME.size : _FRAME.size + length])
    del buffer[: _FRAME.size + length]
    if zlib.crc32(payload) != crc:
        raise Refused("a frame is damaged")
    return payload


def peer_uid(connection: socket.socket) -> int:
    """Numeric user id of the other side, as the kernel knows it."""
    if sys.platform == "linux":
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", raw)[1])
    # LOCAL_PEERCRED of <sys/un.h>: struct xucred begins with version and uid.
    raw = connection.getsockopt(0, 1, 76)
    return int(struct.unpack_from("II", raw)[1])


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """A name for a socket that fits into sun_path, also where the folder's path does not."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
