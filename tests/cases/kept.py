"""Records of a run, kept in a file: what the scribe would have read, to be diagnosed again at will.

A file holds payloads as they stood in the ring, each after its length as a little-endian uint32.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tuimon.feed.codec import decode
from tuimon.feed.ring import RingReader
from tuimon.model.records import AnyRecord

_LENGTH = struct.Struct("<I")
_RUN = (sys.executable, "-m", "tuimon", "run")
READ_RECORDS, READ_S, REST_S = 4000, 0.5, 0.02


def keep(script: Path, file: Path, room: Path) -> int:
    """Run `script` watched in `room` and keep the records of its first process.

    Args:
        script: the training.
        file: where the records go; it appears when the run has ended.
        room: an empty folder for what the run leaves behind.

    Returns:
        The exit status of the run.
    """
    environ = {
        **os.environ,
        "TUIMON_DIR": str(room / "runs"),
        "XDG_STATE_HOME": str(room / "state"),
    }
    environ.pop("TUIMON_SCRIBE", None)
    environ.pop("TUIMON_DISABLE", None)
    draft = file.with_suffix(".part")
    running = subprocess.Popen(
        [*_RUN, "--report", str(room / "report.json"), str(script.resolve())],
        cwd=room,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    reader: RingReader | None = None
    with open(draft, "wb") as kept:
        while True:
            has_ended = running.poll() is not None
            rings = [p for p in (room / "runs").rglob("*.ring") if p.name != "scribe.ring"]
            if reader is None and rings:
                reader = RingReader(min(rings, key=_age), from_sequence=0)
            payloads = reader.read(READ_RECORDS, READ_S) if reader is not None else []
            for payload in payloads:
                kept.write(_LENGTH.pack(len(payload)) + payload)
            if has_ended and not payloads:
                break
            if not payloads:
                time.sleep(REST_S)
    os.replace(draft, file)
    return running.returncode


def replay(file: Path) -> Iterator[AnyRecord]:
    """The records of a kept run in order."""
    content = file.read_bytes()
    at = 0
    while at < len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        yield decode(content[at : at + length])
        at += length


def _age(path: Path) -> float:
    return path.stat().st_ctime
