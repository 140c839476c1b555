"""One process of a command that leads to a relay: its start, the handshake, its pipes, its end.

`read` belongs to one thread, `write` to one other; `reason` tells in one line why there is none.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import threading
from collections.abc import Sequence

import msgspec

from tuimon.errors import Refused, UsageError
from tuimon.feed import relay
from tuimon.feed.history import History, history_from
from tuimon.feed.registry import RunInfo
from tuimon.model.text import plain

CONNECT_S = 60.0  # a person may have to type a password, a cluster to start a job step
STALLED_S = 20.0  # a relay sends a beat twice a second
LEAVE_S = 1.0
_STDERR_BYTES = 4000
_FULL_COMMAND = re.compile(r"\btuimon\s+relay\b")
_PLAIN_TOKEN = re.compile(r"[\w.@:+/][\w.@:+/-]*")  # a login shell in between leaves it as it is


def relay_words(command: str, token: str | None) -> list[str]:
    """What to execute: the command with `tuimon relay RUN` behind it, unless it ends so itself.

    Raises:
        UsageError: it cannot be split into words, or the run's name would not survive a shell.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--via {command[:80]!r} cannot be split into words: {error}") from error
    if not words:
        raise UsageError("--via needs a command, such as 'ssh gpu07'")
    if token is not None and not _PLAIN_TOKEN.fullmatch(token):
        raise UsageError(f"name the run {token[:80]!r} by its id: `tuimon ls` there lists them")
    if not _FULL_COMMAND.search(command):
        words += ["tuimon", "relay"]
    return words if token is None else [*words, token]


class Link:
    """One process of the command, from its start to its end.

    Attributes:
        info, history: what the relay said of the run.
        marks: how far each ring has been read; belongs to the thread that reads.
    """

    info: RunInfo

    def __init__(self, words: Sequence[str], *, detached: bool) -> None:
        """Start it; a `detached` one has no terminal, so that it cannot ask in mid-picture.

        Raises:
            Refused: it cannot be started.
        """
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=detached,
            )
        except OSError as error:
            raise Refused(f"relay: {words[0]}: {error.strerror}") from error
        self._name = words[0]
        self._said = b""
        self._buffer = bytearray()
        self.patience_s = CONNECT_S
        self.history: History | None = None
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def begin(self, begin: relay.Begin) -> None:
        """Shake hands and learn what run it is.

        Raises:
            NoSuchRun, Refused, IncompatibleVersion: as the relay says, or why it did not.
        """
        try:
            if relay.skip_to_greeting(self) is None:
                raise Refused(self.reason())
            relay.check_offer(relay.read_from_relay(self))
            self.write(begin)
            answer = relay.read_from_relay(self)
            if isinstance(answer, relay.Problem):
                raise relay.raised(answer)
            if not isinstance(answer, relay.Run):
                raise Refused(self.reason())
            self.info = answer.info
            if answer.history_bytes:
                self.history = self._take_history(answer)
                at = self.history
                marks = (
                    (relay.Mark(at.up_to_sequence), relay.Mark(at.scribe_sequence))
                    if at
                    else (None, None)
                )
                self.write(msgspec.structs.replace(begin, trainer=marks[0], scribe=marks[1]))
        except relay.Damaged as error:
            raise Refused(f"relay: {self._name}: {error}") from error
        except OSError as error:
            raise Refused(self.reason()) from error
        self.patience_s = STALLED_S

    def read(self, size: int, /) -> bytes:
        """So many bytes of what the relay says; fewer only at its end.

        Raises:
            Damaged: nothing came for too long.
        """
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while len(self._buffer) < size:
            ready, _, _ = select.select([descriptor], [], [], self.patience_s)
            if not ready:
                raise relay.Damaged(f"nothing heard for {self.patience_s:g} s")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                break
            self._buffer += chunk
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def write(self, message: relay.Message) -> None:
        """Send a message; may block while the relay does. Raises OSError when it has left."""
        assert self._process.stdin is not None
        data = memoryview(relay.packed(message))
        while data:
            data = data[self._process.stdin.write(data) or 0 :]

    def reason(self) -> str:
        """Why there is no relay: the last line that the command said, or how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S)
        self._hearing.join(LEAVE_S)
        lines = plain_lines(self._said)
        if lines:
            return f"relay: {lines[-1].removeprefix('tuimon: ')}"
        code = self._process.poll()
        how = "closed its output" if code is None else f"ended with status {code}"
        return f"relay: `{self._name}` {how} and said nothing"

    def end(self) -> None:
        """Let the relay leave by the end of its input; then make sure. Safe to call twice."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S)
                return

    def release(self) -> None:
        """Give up the reading ends, once nobody reads any more."""
        self._hearing.join(LEAVE_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _take_history(self, run: relay.Run) -> History | None:
        if run.history_bytes > relay.MAX_HISTORY_BYTES:
            raise relay.Damaged("the history is too long")
        data = bytearray()
        while len(data) < run.history_bytes:
            part = relay.read_from_relay(self)
            if not isinstance(part, relay.HistoryPart) or not part.data:
                raise relay.Damaged("the history ends early")
            data += part.data
        history = history_from(bytes(data))
        return history if history is not None and history.run_id == run.info.id else None

    def _hear(self) -> None:
        """Keep the end of what the command says on stderr."""
        assert self._process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._process.stderr.fileno(), 4096):
                self._said = (self._said + chunk)[-_STDERR_BYTES:]


def plain_lines(said: bytes) -> list[str]:
    """What a command said, line by line, safe for a terminal, without empty ones."""
    lines = (plain(line, 300).strip() for line in said.decode(errors="replace").splitlines())
    return [line for line in lines if line]
