"""Make a picture of the real program: a demo trains, `tuimon attach` shows it on a pty.

    python tools/picture.py docs/overview.svg --size 120x40 --script demo/explode.py --step 400

The run, the viewer and the screen are the real ones; nothing is drawn by hand. `--keys` are sent
once the step is reached and the screen shows the text of `--until`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

sys.path.insert(0, str(Path(__file__).resolve().parent))
import screen_svg

# What a current terminal answers to the questions programs ask at their start.
ANSWERS = [
    (re.compile(rb"\x1b\[0?c"), b"\x1b[?62;22c"),
    (re.compile(rb"\x1b\[6n"), b"\x1b[1;1R"),
    (re.compile(rb"\x1b\[\?2026\$p"), b"\x1b[?2026;2$y"),
]
# Sequences that pyte prints instead of obeying.
UNKNOWN = re.compile(
    rb"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p|\x1bP[^\x1b]*\x1b\\|\x1b\][^\x07\x1b]*\x07"
)


class Terminal:
    """A program on a pty of a given size, and the screen it draws."""

    def __init__(self, argv: list[str], columns: int, lines: int) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            environ = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
            os.execvpe(argv[0], argv, environ)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def send(self, keys: str) -> None:
        """Type."""
        os.write(self._fd, keys.encode())

    def read(self, seconds: float) -> None:
        """Draw what arrives for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._fd], [], [], left)[0]:
                return
            try:
                chunk = os.read(self._fd, 1 << 16)
            except OSError:
                return
            for question, answer in ANSWERS:
                if question.search(chunk):
                    os.write(self._fd, answer)
            self._stream.feed(UNKNOWN.sub(b"", chunk))

    def settle(self, seconds: float) -> None:
        """Draw for so long, also while nothing comes."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.read(min(left, 0.2))

    def wait_for(self, pattern: str, seconds: float) -> None:
        """Draw until the screen shows `pattern`."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, "\n".join(self.screen.display)):
            if time.monotonic() > deadline:
                raise SystemExit(f"picture: {pattern!r} did not appear within {seconds:g} s")
            self.read(0.2)

    def close(self) -> None:
        """End the program."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGTERM)
        with contextlib.suppress(OSError):
            os.close(self._fd)
        with contextlib.suppress(OSError):
            os.waitpid(self.pid, 0)


def take(options: argparse.Namespace) -> None:
    """Train, attach, wait, and write the picture."""
    columns, lines = map(int, options.size.split("x"))
    tuimon = [sys.executable, "-m", "tuimon"]
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUIMON_DIR"] = os.environ["XDG_STATE_HOME"] = home
        training = subprocess.Popen(
            [*tuimon, "run", *options.script.split()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        terminal = Terminal([*tuimon, "attach"], columns, lines)
        try:
            if options.step is not None:
                wanted = f"{options.step:,}"[:-1] + r"\d"
                terminal.wait_for(rf"step {wanted}", options.timeout)
            if options.until:
                terminal.wait_for(options.until, options.timeout)
            for key in options.keys:
                terminal.send(key)
                terminal.read(0.5)
            terminal.settle(options.settle)
            options.target.parent.mkdir(parents=True, exist_ok=True)
            options.target.write_text(screen_svg.render(terminal.screen), encoding="utf-8")
            print(screen_svg.text(terminal.screen), end="")
        finally:
            terminal.close()
            training.send_signal(signal.SIGINT)
            training.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--script", default="demo/explode.py", help="script and its arguments")
    parser.add_argument("--size", default="120x40")
    parser.add_argument("--step", type=int, help="wait for about this step")
    parser.add_argument("--keys", default="", help="typed then, one by one")
    parser.add_argument("--until", default="", help="then wait for this text")
    parser.add_argument("--settle", type=float, default=1.5, help="seconds before the picture")
    parser.add_argument("--timeout", type=float, default=120)
    take(parser.parse_args())


if __name__ == "__main__":
    main()
