"""How sure findings are, against how often they are right, from reports that were kept.

    python -m tests.cases.calibration FOLDER=REPORTS [FOLDER=REPORTS ...]

FOLDER is as in `tests.cases.corpus`, REPORTS as `tests.cases.score --reports` keeps them. The first
finding of each script counts; one on a healthy training is wrong. Runs nothing.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.cases.corpus import cases_of

EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.001)


class Said(NamedTuple):
    """The first finding about one script."""

    case: str
    cause: str
    status: str
    confidence: float
    is_right: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Print the share that is right of each range of confidence, and who is wrong in it."""
    pairs = [each.partition("=") for each in (sys.argv[1:] if argv is None else argv)]
    if not pairs or not all(folder and reports for folder, _, reports in pairs):
        print(__doc__)
        return 2
    said = [each for folder, _, kept in pairs for each in first_findings(Path(folder), Path(kept))]
    for line in table(said):
        print(line)
    return 0


def first_findings(folder: Path, reports: Path) -> Iterable[Said]:
    """Of every case that has a report, and about which something was found."""
    for case in cases_of(folder):
        file = reports / f"{case.path.stem}.json"
        findings = json.loads(file.read_text())["findings"] if file.exists() else []
        if findings:
            first = findings[0]
            accept = case.expected["accept"] if case.expected is not None else []
            is_right = first["cause"] in accept
            yield Said(case.id, first["cause"], first["status"], first["confidence"], is_right)


def table(said: Sequence[Said]) -> list[str]:
    """A line for each range of each status: the mean confidence, the share right, the wrong."""
    ranges: dict[tuple[str, int], list[Said]] = defaultdict(list)
    for each in said:
        above = max(at for at, edge in enumerate(EDGES) if edge <= each.confidence)
        ranges[each.status, above].append(each)
    lines = ["status      confidence   said   mean  right"]
    for (status, at), found in sorted(ranges.items()):
        right = sum(each.is_right for each in found)
        mean = sum(each.confidence for each in found) / len(found)
        wrong = " ".join(f"{each.case}:{each.cause}" for each in found if not each.is_right)
        span = f"{EDGES[at]:.2f}-{min(1.0, EDGES[at + 1]):.2f}"
        share = f"{100 * right / len(found):3.0f} %"
        lines.append(f"{status:11} {span}  {len(found):5}   {mean:.2f}  {share}  {wrong}".rstrip())
    return lines


if __name__ == "__main__":
    sys.exit(main())
