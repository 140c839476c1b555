"""A terminal for tests: a pty, answers to what programs ask, and pyte as the screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parents[2]
_ANSWERS = (
    (re.compile(rb"\x1b\[c"), b"\x1b[?62;22c"),
    (re.compile(rb"\x1b\[6n"), b"\x1b[1;1R"),
    (re.compile(rb"\x1b\[\?2026\$p"), b"\x1b[?2026;2$y"),
)
# What pyte does not know and would print: private modes with $, kitty keys, OSC, DCS.
_UNKNOWN = re.compile(
    rb"\x1b\[[<>=][0-9;:]*[A-Za-z]|\x1b\[\?[0-9;]*\$p|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
)
PATIENCE_S = 30.0


class Terminal:
    """One program on one terminal."""

    def __init__(
        self,
        *args: str,
        size: tuple[int, int] = (120, 40),
        environ: Mapping[str, str | None] | None = None,
        answers: bool = True,
    ) -> None:
        self._answers = answers
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        self.code: int | None = None
        env = {
            key: value
            for key, value in os.environ.items()
            if key not in ("NO_COLOR", "COLORTERM", "TERM_PROGRAM", "TMUX", "LC_ALL", "LC_CTYPE")
        }
        env |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        for key, value in (environ or {}).items():
            env.pop(key, None)
            if value is not None:
                env[key] = value
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(sys.executable, [sys.executable, *args], env)
        self.resize(*size)
        self.before = termios.tcgetattr(self.fd)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, as dragging a window does."""
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def send(self, typed: bytes) -> None:
        """Type."""
        os.write(self.fd, typed)

    def pump(self, seconds: float) -> int:
        """Take in what the program writes; the number of bytes."""
        end, taken = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.fd], [], [], left)[0]:
                break
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:
                break
            if not chunk:
                break
            taken += len(chunk)
            self.feed(chunk)
        return taken

    def feed(self, chunk: bytes) -> None:
        """Draw what the program wrote, and answer what it asks."""
        self.raw += chunk
        for question, answer in _ANSWERS if self._answers else ():
            for _ in question.finditer(chunk):
                self.send(answer)
        self._stream.feed(_UNKNOWN.sub(b"", chunk))

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, wanted: Callable[[str], bool] | str, *, patience_s: float = PATIENCE_S) -> str:
        """Wait until the screen shows it; return the screen."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            self.pump(0.05)
            shown = self.text
            if wanted in shown if isinstance(wanted, str) else wanted(shown):
                return shown
        raise AssertionError(f"never saw {wanted!r}; the screen:\n{self.text}")

    def end(self) -> int:
        """Wait for the program to end by itself; its exit code, negative for a signal."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self.pump(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pump(0.2)
                self.code = os.waitstatus_to_exitcode(status)
                return self.code
        raise AssertionError(f"did not end; the screen:\n{self.text}")

    def cpu_s(self) -> float:
        """CPU seconds of the program so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def hang_up(self) -> None:
        """Close the terminal under the program."""
        os.close(self.fd)
        self.fd = -1

    def close(self) -> None:
        """Leave nothing behind."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        if self.fd >= 0:
            os.close(self.fd)


Open = Callable[..., Terminal]


def is_restored(terminal: Terminal) -> bool:
    """Main screen, cursor shown, mouse and paste modes off, line discipline as before."""
    raw = bytes(terminal.raw)
    off = [b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1003l", b"\x1b[?2004l"]
    on = [b"\x1b[?1049h", b"\x1b[?25l", b"\x1b[?1003h", b"\x1b[?2004h"]
    modes = all(raw.rfind(a) > raw.rfind(b) for a, b in zip(off, on, strict=True))
    return modes and termios.tcgetattr(terminal.fd)[:4] == terminal.before[:4]
