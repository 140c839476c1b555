"""Runs a folder of failure cases bare and watched, and compares both with each other and the truth.

    python -m tests.cases.corpus DIR [--only C11,H05] [--jobs 1]

DIR holds scripts and `expected.json`; its folder `healthy/`, if there is one, holds trainings that
must raise no alarm. Exits with 1 when anything disagrees. Not part of the test suite: it takes
minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuimon.model.causes import SYMPTOMS

NON_FINITE = "non-finite-"
ALARMS = ("warning", "critical")
LIMIT_S = 900.0


@dataclass(frozen=True)
class Case:
    """One script with what is known about it."""

    id: str
    path: Path
    expected: dict[str, Any] | None  # None for a healthy training
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """What one run of a script left behind."""

    status: int
    stdout: bytes
    stderr: bytes
    seconds: float


@dataclass
class Verdict:
    """What was compared for one case; `problems` is empty when all of it agrees."""

    case: Case
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bare_s: float = 0.0
    watched_s: float = 0.0


def main(argv: list[str] | None = None) -> int:
    """Run the chosen cases, print a table; 1 when one of them disagrees."""
    parser = argparse.ArgumentParser(prog="python -m tests.cases.corpus")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="comma-separated beginnings of case ids")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(argv)
    chosen = tuple(part for part in options.only.split(",") if part)
    cases = [case for case in cases_of(options.folder) if case.id.startswith(chosen or ("",))]
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = []
        for verdict in pool.map(judge, cases):
            verdicts.append(verdict)
            print(line_of(verdict), flush=True)
    wrong = [verdict.case.id for verdict in verdicts if verdict.problems]
    print(f"{len(verdicts)} cases, {len(wrong)} disagree{': ' if wrong else ''}{' '.join(wrong)}")
    return 1 if wrong or not verdicts else 0


def cases_of(folder: Path) -> list[Case]:
    """The failing cases by `expected.json`, then the healthy ones."""
    folder = folder.resolve()  # a script runs in a folder of its own
    expected = json.loads((folder / "expected.json").read_text())
    failing = [Case(id_, folder / truth["file"], truth) for id_, truth in sorted(expected.items())]
    healthy = [
        Case(path.stem.partition("_")[0], path, None, allowed_in(path.read_text()))
        for path in sorted((folder / "healthy").glob("*.py"))
    ]
    return failing + healthy


def allowed_in(source: str) -> tuple[str, ...]:
    """The symptoms that a healthy script's docstring allows."""
    found = re.search(r"^allowed:(.*)$", source, re.MULTILINE)
    words = found[1] if found else ""
    return tuple(
        kind
        for kind in SYMPTOMS
        if kind in words or (kind.startswith(NON_FINITE) and "non-finite (" in words)
    )


def judge(case: Case) -> Verdict:
    """Run one case twice and compare."""
    verdict = Verdict(case)
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        report_file = room / "report.json"
        bare = run([str(case.path)], room)
        ours = ["-m", "tuimon", "run", "--report", str(report_file), str(case.path)]
        watched = run(ours, room)
        verdict.bare_s, verdict.watched_s = bare.seconds, watched.seconds
        compare_runs(verdict, bare, watched, lambda: run([str(case.path)], room))
        try:
            report = json.loads(report_file.read_text())
        except (OSError, ValueError) as error:
            verdict.problems.append(f"no report ({error})")
            return verdict
    compare_report(verdict, report, watched.status)
    return verdict


def run(argv: list[str], room: Path) -> Ended:
    """`python argv` with a home for runs of its own."""
    environ = {
        **os.environ,
        "TUIMON_DIR": str(room / "runs"),
        "XDG_STATE_HOME": str(room / "state"),
    }
    environ.pop("TUIMON_SCRIBE", None)
    environ.pop("TUIMON_DISABLE", None)
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=room,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - began_s)


def compare_runs(verdict: Verdict, bare: Ended, watched: Ended, again: Any) -> None:
    """Both runs must look the same; where bare runs differ by order, any order of bytes will do."""
    if bare.status != watched.status:
        verdict.problems.append(f"status {watched.status}, bare {bare.status}")
    for stream, one, other in (
        ("stdout", bare.stdout, watched.stdout),
        ("stderr", bare.stderr, without_ours(watched.stderr)),
    ):
        if one == other:
            continue
        if sorted(one) == sorted(other) and any(getattr(again(), stream) != one for _ in range(3)):
            verdict.notes.append(f"{stream}: order differs between bare runs as well")
        else:
            verdict.problems.append(f"{stream} differs: {first_difference(one, other)}")


def without_ours(stderr: bytes) -> bytes:
    """Stderr but for the lines of tuimon."""
    lines = stderr.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"tuimon:"))


def first_difference(one: bytes, other: bytes) -> str:
    """The first line in which two outputs differ."""
    bare, watched = one.splitlines(), other.splitlines()
    for left, right in zip(bare, watched, strict=False):
        if left != right:
            return f"{left[:80]!r} became {right[:80]!r}"
    return f"{len(bare)} lines became {len(watched)}"


def compare_report(verdict: Verdict, report: dict[str, Any], status: int) -> None:
    """The report against what is known about the case."""
    symptoms = report["symptoms"]
    verdict.notes.append(", ".join(told(symptom) for symptom in symptoms) or "no symptom")
    expected = verdict.case.expected
    loud = [symptom for symptom in symptoms if symptom["severity"] in ALARMS]
    if report["run"]["exit"]["code"] != status:
        verdict.problems.append(f"the report says exit {report['run']['exit']}")
    if expected is None:
        verdict.problems += [
            f"alarm in a healthy run: {told(symptom)}"
            for symptom in loud
            if symptom["kind"] not in verdict.case.allowed
        ]
        return
    compare_non_finite(verdict, loud, expected)
    if expected["exception"] is not None:
        raised = [s for s in symptoms if s["kind"] == "exception"]
        if not any(expected["exception"] in symptom["detail"] for symptom in raised):
            verdict.problems.append(f"no symptom tells of the {expected['exception']}")
    if report["outcome"] not in expected["outcome_accept"]:
        verdict.notes.append(f"outcome {report['outcome']}, not {expected['outcome_accept']}")


def compare_non_finite(
    verdict: Verdict, symptoms: Iterable[dict[str, Any]], expected: dict[str, Any]
) -> None:
    """Kind and step of the first non-finite values.

    Activations are not watched in every step: a bad one counts as seen when whatever it spoils
    first in the same step is.
    """
    seen = [symptom for symptom in symptoms if symptom["kind"].startswith(NON_FINITE)]
    truths = [expected["first_non_finite"], *expected["first_non_finite"].get("also", [])]
    if truths[0]["what"] is None:
        verdict.problems += [f"false alarm: {told(symptom)}" for symptom in seen]
        return
    for truth in truths:
        kinds = expected["symptoms_any"]
        if truth["what"] != "activation":
            kinds = [NON_FINITE + truth["what"]]
        near = [
            symptom
            for symptom in seen
            if symptom["kind"] in kinds
            and symptom["step"] is not None
            and abs(symptom["step"] - truth["step"]) <= truth["tolerance"]
        ]
        if not near:
            verdict.problems.append(f"missed: {truth['what']} at step {truth['step']}")
    first = truths[0]["step"] - truths[0]["tolerance"]
    verdict.problems += [
        f"too early: {told(symptom)}"
        for symptom in seen
        if symptom["step"] is not None and symptom["step"] < first
    ]


def told(symptom: dict[str, Any]) -> str:
    """A symptom in a few characters."""
    mark = {"critical": "!!", "warning": "!"}.get(symptom["severity"], "")
    return f"{symptom['kind']}@{symptom['step']}{mark}"


def line_of(verdict: Verdict) -> str:
    """One row of the table."""
    mark = "WRONG" if verdict.problems else "ok"
    times = f"{verdict.bare_s:6.1f} s {verdict.watched_s:6.1f} s"
    return f"{verdict.case.id:4} {mark:5} {times}  {'; '.join(verdict.problems + verdict.notes)}"


if __name__ == "__main__":
    sys.exit(main())
