"""How well a folder of cases is seen: recall, delay, first operation, outcome, cause, false alarms.

    python -m tests.cases.score FOLDER [--reports DIR] [--only C11,H] [--jobs 1] [--rivals]

FOLDER is as in `tests.cases.corpus`. Each script runs once under `tuimon run --report`; report and
records go to DIR (a temporary folder without one), and a second call with the same DIR only scores
what lies there. `--rivals` sets three rules beside it that people use: anomaly mode of autograd, a
spike of twice the running mean of ten, and ten times the largest of the first hundred. Exits with
1 when a non-finite value is missed or a healthy training is accused.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from json import loads
from pathlib import Path
from typing import Any

from tests.cases import rivals
from tests.cases.corpus import Case, cases_of
from tests.cases.judged import Marks, alarms_of, lines_of, marks_of
from tests.cases.kept import keep, replay

PARTLY = "healthy: partly"  # a twin that stops failing but does not learn within its steps
FIELDS = ("seen", "op", "module", "line", "outcome", "top1", "top3")
_SIGNS = {None: "-", True: "ok", False: "NO"}


@dataclass(frozen=True)
class Row:
    """One script: the marks of a failing one, or the alarms of a healthy one."""

    case: Case
    marks: Marks | None = None
    alarms: tuple[str, ...] = ()
    rules: dict[str, int | None] = field(default_factory=dict)
    anomaly: rivals.Anomaly | None = None
    has_report: bool = True


def main(argv: list[str] | None = None) -> int:
    """Run what has no report yet, print a row a script and the shares."""
    parser = argparse.ArgumentParser(prog="python -m tests.cases.score")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reports", type=Path, help="where reports are kept and found again")
    parser.add_argument("--only", default="", help="comma-separated beginnings of case ids")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rivals", action="store_true", help="what others see in the same scripts")
    options = parser.parse_args(argv)
    chosen = tuple(part for part in options.only.split(",") if part) or ("",)
    cases = [case for case in cases_of(options.folder) if case.id.startswith(chosen)]
    with tempfile.TemporaryDirectory() as spare, ThreadPoolExecutor(options.jobs) as pool:
        folder = options.reports or Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for row in pool.map(partial(score, folder=folder, has_rivals=options.rivals), cases):
            rows.append(row)
            print(line_of(row), flush=True)
    for line in summary(rows):
        print(line)
    return 1 if any(is_wrong(row) for row in rows) or not rows else 0


def score(case: Case, *, folder: Path, has_rivals: bool) -> Row:
    """The row of one case; it is run where its report is not kept."""
    stem = case.path.stem
    report_file, records = folder / f"{stem}.json", folder / f"{stem}.bin"
    if is_due(report_file, records if has_rivals else None):
        with tempfile.TemporaryDirectory() as room:
            keep(case.path, records, Path(room))
            if (Path(room) / "report.json").exists():
                shutil.move(Path(room) / "report.json", report_file)
    if not report_file.exists():
        return Row(case, has_report=False)
    report: dict[str, Any] = loads(report_file.read_text())
    rules: dict[str, int | None] = {}
    said = None
    if has_rivals:
        rules = rivals.rules(replay(records))
        said = rivals.anomaly(case.path, folder / f"{stem}.anomaly.txt")
    if case.expected is None:
        return Row(case, alarms=tuple(alarms_of(case, report)), rules=rules, anomaly=said)
    return Row(case, marks=marks_of(case, report), rules=rules, anomaly=said)


def is_due(report: Path, records: Path | None) -> bool:
    """Whether a script has to run: rules on losses need its records as well as its report."""
    return not report.exists() or (records is not None and not records.exists())


def is_wrong(row: Row) -> bool:
    """Missed, accused, or without a report."""
    missed = row.marks is not None and row.marks.seen is False
    return missed or (bool(row.alarms) and counts(row)) or not row.has_report


def counts(row: Row) -> bool:
    """Whether a healthy script counts as such."""
    return row.case.expected is None and PARTLY not in row.case.path.read_text()


def line_of(row: Row) -> str:
    """One row of the table."""
    if not row.has_report:
        return f"{row.case.id:4} NO REPORT"
    if row.marks is None:
        mark = "partly" if not counts(row) else "ACCUSED" if row.alarms else "healthy"
        return f"{row.case.id:4} {mark:8} {'; '.join(row.alarms)}".rstrip()
    signs = " ".join(f"{name} {_SIGNS[getattr(row.marks, name)]:2}" for name in FIELDS)
    delay = "-" if row.marks.delay is None else row.marks.delay
    return f"{row.case.id:4} {signs} delay {delay:>3}  {row.marks.said}"


def summary(rows: Sequence[Row]) -> list[str]:
    """The shares over all scripts, then by class."""
    failing = [row for row in rows if row.marks is not None]
    healthy = [row for row in rows if counts(row) and row.has_report]
    accused = [row.case.id for row in healthy if row.alarms]
    lines = [f"{len(failing)} failing scripts, {len(healthy)} healthy ones"]
    lines += [f"  {name:9} {share(failing, name)}" for name in FIELDS]
    lines.append(f"  confirmed {share(failing, 'confirmed')}")
    delays = [row.marks.delay for row in failing if row.marks and row.marks.delay is not None]
    if delays:
        middle = statistics.median(delays)
        lines.append(f"  delay     median {middle:g}, {min(delays)} to {max(delays)} steps")
    lines.append(f"  accused   {len(accused)} of {len(healthy)} {' '.join(accused)}".rstrip())
    lines += by_class(failing)
    if any(row.rules or row.anomaly for row in rows):
        lines += beside(failing, healthy)
    return lines


def share(rows: Iterable[Row], name: str) -> str:
    """Right ones of those that can be right, and who is wrong."""
    told = [(row.case.id, getattr(row.marks, name)) for row in rows]
    told = [(id_, is_right) for id_, is_right in told if is_right is not None]
    right = sum(is_right for _, is_right in told)
    wrong = "" if name == "confirmed" else " ".join(id_ for id_, is_right in told if not is_right)
    frac = f" ({100 * right / len(told):.0f} %)" if told else ""
    return f"{right} of {len(told)}{frac}{f'  wrong: {wrong}' if wrong else ''}"


def by_class(failing: Sequence[Row]) -> list[str]:
    """Top-1 and top-3 of each class; a class is the first accepted cause."""
    classes: dict[str, list[Marks]] = defaultdict(list)
    for row in failing:
        if row.case.expected is not None and row.marks is not None:
            classes[row.case.expected["accept"][0]].append(row.marks)
    lines = ["class: scripts, top-1, top-3, confirmed"]
    return lines + [
        f"  {name:17} {len(marks):3} {sum(m.top1 for m in marks):3} "
        f"{sum(m.top3 for m in marks):3} {sum(m.confirmed for m in marks):3}"
        for name, marks in sorted(classes.items())
    ]


def beside(failing: Sequence[Row], healthy: Sequence[Row]) -> list[str]:
    """What the rivals see of the non-finite values, and of the healthy."""
    bad = [row for row in failing if row.marks is not None and row.marks.seen is not None]
    lines = ["rival: non-finite values seen, operation and line named, healthy accused"]
    spoke = [row for row in bad if row.anomaly is not None and row.anomaly.op is not None]
    with_op = [row for row in bad if row.marks is not None and row.marks.op is not None]
    with_line = [row for row in bad if row.marks is not None and row.marks.line is not None]
    named = sum(
        rivals.names_operation(row.anomaly, row.case.expected["op_accept"])
        for row in with_op
        if row.anomaly is not None and row.case.expected is not None
    )
    lines_right = sum(
        row.anomaly is not None and row.anomaly.line in (lines_of(row.case) or ())
        for row in with_line
    )
    wrongly = sum(row.anomaly is not None and row.anomaly.op is not None for row in healthy)
    lines.append(
        f"  detect_anomaly   {len(spoke)} of {len(bad)}, op {named} of {len(with_op)}, "
        f"line {lines_right} of {len(with_line)}, {wrongly} of {len(healthy)}"
    )
    for name in sorted({name for row in bad for name in row.rules}):
        found = sum(row.rules[name] is not None for row in bad if name in row.rules)
        alarms = sum(row.rules.get(name) is not None for row in healthy)
        lines.append(f"  {name:16} {found} of {len(bad)}, -, -, {alarms} of {len(healthy)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
