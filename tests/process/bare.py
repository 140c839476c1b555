"""Runs a script under plain Python and under `tuimon run`, and compares what the world sees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What a process left behind for its parent."""

    status: int
    stdout: str
    stderr: str

    @property
    def ours(self) -> list[str]:
        """The lines of tuimon."""
        return [line for line in self.stderr.splitlines() if line.startswith("tuimon:")]

    @property
    def theirs(self) -> str:
        """Stderr without the lines of tuimon."""
        lines = self.stderr.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("tuimon:"))


LIMIT_S = 100


def python(
    folder: Path, *argv: str, options: Sequence[str] = (), limit_s: float = LIMIT_S
) -> Outcome:
    """`python argv…`."""
    return _run(folder, [sys.executable, *options, *argv], {}, limit_s)


def tuimon_run(
    folder: Path,
    *argv: str,
    options: Sequence[str] = (),
    scribe: bool = False,
    environ: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> Outcome:
    """`python -m tuimon run argv…`, without a scribe unless the test is about one."""
    words = [sys.executable, *options, "-m", "tuimon", "run", *argv]
    quiet = {"TUIMON_SCRIBE": "1" if scribe else "0", **(environ or {})}
    return _run(folder, words, quiet, limit_s)


def both(folder: Path, *argv: str, options: Sequence[str] = ()) -> tuple[Outcome, Outcome]:
    """The bare run and the watched one, which must look the same from outside."""
    bare = python(folder, *argv, options=options)
    watched = tuimon_run(folder, *argv, options=options)
    assert watched.stdout == bare.stdout
    assert watched.theirs == bare.stderr
    assert watched.status == bare.status
    return bare, watched


def _run(folder: Path, words: list[str], environ: Mapping[str, str], limit_s: float) -> Outcome:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
