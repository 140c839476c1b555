"""Following the file that a training in the background writes its output to.

Reads only. A line that a progress bar keeps rewriting is told as "progress": each replaces the
one before it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tuimon.feed import private
from tuimon.model.records import Output

WRITTEN, PROGRESS = "output", "progress"  # `Output.stream`: both streams lie in one file
BEGIN_BYTES = 256 << 10  # of what was written before anybody looked
READ_BYTES = 64 << 10  # at a time
MAX_LINE_BYTES = 16 << 10
PROGRESS_EVERY_S = 0.5
_LOOK_EVERY_S = 0.2
# Colours and movements that a program sends where it believes to have a terminal.
_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


class OutputTail:
    """Lines as they come; belongs to one thread.

    Attributes:
        offset, inode: how far it has read, and of which file.
    """

    def __init__(
        self,
        path: Path,
        offset: int | None = None,
        *,
        inode: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin at `offset` of the file with that inode; without one near its end."""
        self._path = path
        self._wanted = (offset, inode)
        self._clock = clock
        self._file: BinaryIO | None = None
        self._rest = b""
        self._looked_s = float("-inf")
        self._progress = b""
        self._progress_s = float("-inf")
        self.offset = offset or 0
        self.inode = inode

    def read(self) -> list[Output]:
        """The lines that are new; none while there is no such file."""
        now_s = self._clock()
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return []
        self._looked_s = now_s
        if self._file is None and not self._open():
            return []
        assert self._file is not None
        data = self._file.read(READ_BYTES)
        if not data:
            return self._bar(now_s)
        self._looked_s = float("-inf")  # there may be more
        self.offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = self._rest[-MAX_LINE_BYTES:]
        found = [Output(now_s, WRITTEN, _text(line)) for line in lines]
        return found if len(data) == READ_BYTES else found + self._bar(now_s)

    @property
    def mark(self) -> int:
        """Where another reader would begin: at the line that is not finished."""
        return self.offset - len(self._rest)

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = private.open_reading(self._path)
            found = os.fstat(self._file.fileno())
        except OSError:
            return False
        offset, inode = self._wanted
        if offset is None or (inode and inode != found.st_ino) or offset > found.st_size:
            offset = max(0, found.st_size - BEGIN_BYTES)
            self._file.seek(offset)
            if offset:
                offset += len(self._file.readline(MAX_LINE_BYTES))  # a line that was cut
        self._file.seek(offset)
        self.offset, self.inode = offset, found.st_ino
        return True

    def _bar(self, now_s: float) -> list[Output]:
        """The line that is not finished yet, now and then."""
        new = self._rest.strip()
        due = now_s - self._progress_s >= PROGRESS_EVERY_S
        if not new or new == self._progress or not due:
            return []
        self._progress, self._progress_s = new, now_s
        return [Output(now_s, PROGRESS, _text(new))]


def _text(line: bytes) -> str:
    """What a terminal would show of a line in the end."""
    shown = _ESCAPES.sub(b"", line[-MAX_LINE_BYTES:]).rstrip(b"\r")
    return shown.rpartition(b"\r")[2].decode("utf-8", "replace").rstrip()
