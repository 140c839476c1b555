"""Files that torch has saved, opened by a process of their own: see `torch_worker`.

This side knows neither torch nor the files: it asks, waits no longer than a file of that size can
take, and turns whatever becomes of the other side into one line.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tuimon.inspect.checkpoint import Stored, Unreadable
from tuimon.inspect.dtypes import DTYPES, DType
from tuimon.inspect.statistics import Measured, Raw, Read
from tuimon.model.text import plain

STARTS_WITHIN_S = 120.0  # importing torch from a cold network disk
PATIENCE_S = 60.0  # for one answer, beside what reading takes
SLOWEST_BYTES_PER_S = 10e6  # a disk worth waiting for
# `weights_only` of older versions can be made to execute a file: CVE-2025-32434 below 2.6,
# CVE-2026-24747 below 2.10.
SAFE_VERSION = (2, 10)
_PIPE_BYTES = 1 << 20


class TorchReader:
    """The other process; started by the first file, ended by `close`."""

    def __init__(self, *, trusts_files: bool = False) -> None:
        """Remember what to start.

        Args:
            trusts_files: whether files are read by versions of torch with known holes, too.
        """
        self._trusts_files = trusts_files
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self.version = ""

    def ask(self, request: dict[str, Any], *, size_bytes: int = 0) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            Unreadable: the file is refused, or the process could not cope with it.
        """
        process = self._started()
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone: the missing answer says so
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        answer = self._line(PATIENCE_S + size_bytes / SLOWEST_BYTES_PER_S)
        if "error" in answer:
            raise Unreadable(plain(str(answer["error"]), 300))
        return answer

    def take(self, size: int) -> bytes:
        """So many bytes of what was asked for."""
        until_s = time.monotonic() + PATIENCE_S
        while len(self._pending) < size:
            self._more(until_s)
        taken, self._pending = self._pending[:size], self._pending[size:]
        return taken

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        self._pending = b""
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tuimon.inspect.torch_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )
        answer = self._line(STARTS_WITHIN_S)
        if "error" in answer:
            self.close()
            raise Unreadable(
                f"needs torch to be read, and {plain(str(answer['error']), 200)}; "
                'pip install "tuimon[torch]"'
            )
        self.version = plain(str(answer.get("version", "")), 40)
        if version_of(self.version) < SAFE_VERSION and not self._trusts_files:
            self.close()
            raise Unreadable(
                f"could be executed by torch {self.version}, whose weights_only has known holes "
                "(CVE-2025-32434, CVE-2026-24747): use torch 2.10, or --trusted for your own files"
            )
        return self._process

    def _line(self, within_s: float) -> dict[str, Any]:
        until_s = time.monotonic() + within_s
        while b"\n" not in self._pending:
            self._more(until_s)
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _more(self, until_s: float) -> None:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(max(0.0, until_s - time.monotonic()))
        if not ready:
            self.close()
            raise Unreadable("takes too long to read: given up")
        got = os.read(self._process.stdout.fileno(), _PIPE_BYTES)
        if not got:
            code = self._process.wait()
            self.close()
            raise Unreadable(f"could not be read: {_how_it_ended(code)}; nothing executed")
        self._pending += got


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its reader ended with status {code}"
    with contextlib.suppress(ValueError):
        return f"its reader was ended by {signal.Signals(-code).name}"
    return f"its reader was ended by signal {-code}"


def version_of(text: str) -> tuple[int, int]:
    """(major, minor) of a version; (0, 0) where it does not say."""
    parts = text.split(".")[:2]
    if len(parts) == 2 and all(part.isdecimal() for part in parts):
        return int(parts[0]), int(parts[1])
    return 0, 0


class TorchFile:
    """An open file of torch's."""

    def __init__(self, path: Path, reader: TorchReader) -> None:
        """Open it in the reader's process.

        Raises:
            Unreadable: it is refused, damaged, or too much.
        """
        self._path = os.path.realpath(path)
        self._reader = reader
        size_bytes = os.path.getsize(self._path)
        answer = reader.ask({"do": "open", "path": self._path}, size_bytes=size_bytes)
        self.tensors = [
            Stored(name, _dtype(dtype), shape) for name, dtype, shape in answer["tensors"]
        ]
        self.notes = _notes(answer)

    def measure(self, index: int) -> Measured:
        """The statistics of one tensor."""
        answer = self._ask("measure", index)
        return msgspec.convert(answer, Measured)

    def read(self, index: int) -> Read:
        """The bytes of one tensor."""
        self._ask("read", index)

        def read(size: int) -> Raw:
            return np.frombuffer(self._reader.take(size), np.uint8)

        return read

    def close(self) -> None:
        """Let go of the file; the process stays."""
        with contextlib.suppress(Unreadable):
            if self._reader._process is not None:
                self._reader.ask({"do": "close", "path": self._path})

    def _ask(self, what: str, index: int) -> dict[str, Any]:
        request = {"do": what, "path": self._path, "index": index}
        return self._reader.ask(request, size_bytes=self.tensors[index].size_bytes)


def _dtype(name: str) -> DType:
    return DTYPES.get(name) or DType(plain(name, 40), 8, "")


def _notes(answer: dict[str, Any]) -> list[str]:
    notes = []
    foreign = [plain(str(name), 80) for name in answer["foreign"]]
    strangers = [name for name in foreign if name.split(".")[0] not in ("torch", "numpy")]
    if strangers:
        some = ", ".join(strangers[:3]) + (", …" if len(strangers) > 3 else "")
        notes.append(f"holds objects of {some}: not executed here; loading all of it would")
    notes += [f"{plain(str(name), 80)} is NaN" for name in answer["numbers"][:5]]
    return notes
