"""Which symptoms are found in a folder of cases, how late, and what is found in healthy runs.

    python -m tests.cases.symptoms FOLDER [--records DIR] [--only C05,H] [--verbose]

FOLDER is as in `tests.cases.corpus`. Each script runs once, watched; its records go to DIR (a
temporary folder without one), and what lies there already is not run again: detectors are measured
over kept records in seconds. Two rules that people use stand beside ours, on the same losses: a
spike is twice the running mean of ten; a blow-up is ten times the largest of the first hundred.
Exits with 1 when a case is missed or a healthy training is accused.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cases.corpus import ALARMS, Case, cases_of
from tests.cases.kept import keep, replay
from tuimon.diagnose.engine import Engine
from tuimon.diagnose.outcome import outcome
from tuimon.model.records import AnyRecord, Goodbye, Step, Symptom, loss_of


@dataclass
class Rival:
    """A rule on losses; `first` is the step at which it first raised its alarm."""

    judge: Callable[[list[float], float], bool]
    keeps: int
    first: int | None = None
    alarms: int = 0
    _losses: list[float] = field(default_factory=list)

    def see(self, step: int, loss: float) -> None:
        if not math.isfinite(loss) or self.judge(self._losses, loss):
            self.first = step if self.first is None else self.first
            self.alarms += 1
        self._losses.append(loss)
        if len(self._losses) > self.keeps:
            del self._losses[0]


def twice_the_mean() -> Rival:
    """More than twice the running mean of ten."""
    return Rival(lambda past, loss: len(past) == 10 and loss > 2 * sum(past) / 10, 10)


@dataclass
class TenfoldMax:
    """More than ten times the largest of the first hundred."""

    first: int | None = None
    alarms: int = 0
    _seen: int = 0
    _largest: float = -math.inf

    def see(self, step: int, loss: float) -> None:
        self._seen += 1
        if self._seen <= 100 and math.isfinite(loss):
            self._largest = max(self._largest, loss)
        elif not math.isfinite(loss) or loss > 10 * self._largest:
            self.first = step if self.first is None else self.first
            self.alarms += 1


@dataclass
class Reading:
    """What one run showed."""

    symptoms: list[tuple[int | None, Symptom]]  # (newest step when it was told, symptom)
    outcome: str
    rivals: dict[str, int | None]
    steps: int


@dataclass
class Score:
    """Counts over all cases."""

    cases: int = 0
    found: int = 0
    outcomes: int = 0
    delays: list[int] = field(default_factory=list)
    rivals_found: Counter[str] = field(default_factory=Counter)
    healthy: int = 0
    accused: list[str] = field(default_factory=list)
    rivals_accuse: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    kinds_expected: Counter[str] = field(default_factory=Counter)
    kinds_found: Counter[str] = field(default_factory=Counter)


def main(argv: list[str] | None = None) -> int:
    """Read the chosen cases, print a table; 1 when one is missed or a healthy run accused."""
    parser = argparse.ArgumentParser(prog="python -m tests.cases.symptoms")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=Path, help="where records are kept and found again")
    parser.add_argument("--only", default="", help="comma-separated beginnings of case ids")
    parser.add_argument("--verbose", action="store_true", help="print every symptom")
    options = parser.parse_args(argv)
    chosen = tuple(part for part in options.only.split(",") if part) or ("",)
    score = Score()
    with tempfile.TemporaryDirectory() as spare:
        folder = options.records or Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        for case in cases_of(options.folder):
            if case.id.startswith(chosen):
                reading = read(records_of(case, folder))
                print(line_of(case, reading, score, options.verbose), flush=True)
    for line in summary(score):
        print(line)
    return 1 if score.missed or score.accused else 0


def records_of(case: Case, folder: Path) -> Iterable[AnyRecord]:
    """The kept records of a case; it is run where there are none."""
    file = folder / f"{case.path.stem}.bin"
    if not file.exists():
        with tempfile.TemporaryDirectory() as room:
            keep(case.path, file, Path(room))
    return replay(file)


def read(records: Iterable[AnyRecord]) -> Reading:
    """Diagnose one run from its records, and let the rivals judge its losses."""
    engine = Engine()
    told: list[tuple[int | None, Symptom]] = []
    rivals = {"2x mean": twice_the_mean(), "10x max": TenfoldMax()}
    newest: int | None = None
    goodbye: Goodbye | None = None
    for record in records:
        if isinstance(record, Step) and record.optimizer == 0:
            newest = record.step
            loss = loss_of(record)
            for rival in rivals.values() if loss is not None else ():
                rival.see(record.step, loss if loss is not None else math.nan)
        goodbye = record if isinstance(record, Goodbye) else goodbye
        told += [(newest, symptom) for symptom in engine.see(record)]
    told += [(newest, symptom) for symptom in engine.close()]
    word = outcome(
        exit_kind=goodbye.kind if goodbye else "killed",
        exit_code=goodbye.code if goodbye else None,
        symptoms=engine.symptoms,
        findings=engine.findings,
        unrecovered=engine.unrecovered(),
        amp_verdict=engine.amp.verdict,
    )
    first = {name: rival.first for name, rival in rivals.items()}
    return Reading(told, word, first, 0 if newest is None else newest + 1)


def line_of(case: Case, reading: Reading, score: Score, verbose: bool) -> str:
    """One row of the table; counts what it says."""
    loud = [(at, each) for at, each in reading.symptoms if each.severity in ALARMS]
    if case.expected is None:
        mark = _healthy(case, loud, reading, score)
    else:
        mark = _failing(case.id, case.expected, loud, reading, score)
    shown = reading.symptoms if verbose else loud
    told = ", ".join(
        f"{each.kind}@{each.step}{'!' * (1 + (each.severity == 'critical'))}"
        f"{f' told {at}' if at != each.step else ''}"
        if each.severity in ALARMS
        else f"{each.kind}@{each.step}"
        for at, each in shown[:12]
    )
    rivals = " ".join(f"{'-' if at is None else at:>5}" for at in reading.rivals.values())
    text = f"{case.id:4} {mark:8} {reading.outcome:9} {rivals}  {told}"
    if verbose:
        text += "".join(f"\n       {each.severity}: {each.detail}" for _, each in shown[:12])
    return text


def _healthy(
    case: Case, loud: list[tuple[int | None, Symptom]], reading: Reading, score: Score
) -> str:
    if _is_partly(case):
        return "partly"
    score.healthy += 1
    alarms = [each for _, each in loud if each.kind not in case.allowed]
    score.rivals_accuse.update(name for name, at in reading.rivals.items() if at is not None)
    if alarms:
        score.accused.append(f"{case.id} ({', '.join(sorted({each.kind for each in alarms}))})")
    return "ACCUSED" if alarms else "ok"


def _failing(
    id_: str,
    expected: dict[str, Any],
    loud: list[tuple[int | None, Symptom]],
    reading: Reading,
    score: Score,
) -> str:
    kinds = expected["symptoms_any"]
    score.cases += 1
    score.kinds_expected.update(kinds)
    score.kinds_found.update({each.kind for _, each in loud} & set(kinds))
    found = next(((at, each) for at, each in loud if each.kind in kinds), None)
    is_right = reading.outcome in expected["outcome_accept"]
    score.outcomes += is_right
    truth = expected["first_non_finite"]["step"]
    score.rivals_found.update(name for name, at in reading.rivals.items() if at is not None)
    if found is None:
        score.missed.append(id_)
        return "MISSED"
    score.found += 1
    if truth is not None and found[0] is not None:
        score.delays.append(found[0] - truth)
    return "found" if is_right else "outcome?"


def _is_partly(case: Case) -> bool:
    """A repaired twin that stops failing but does not learn within its steps does not count."""
    return "healthy: partly" in case.path.read_text()


def summary(score: Score) -> list[str]:
    """Recall, delays and false alarms."""
    lines = [
        f"cases: {score.found} of {score.cases} found, {score.outcomes} outcomes accepted"
        f"{', missed: ' + ' '.join(score.missed) if score.missed else ''}",
        f"healthy: {len(score.accused)} of {score.healthy} accused"
        f"{': ' + '; '.join(score.accused) if score.accused else ''}",
    ]
    if score.delays:
        spread = deque(sorted(score.delays))
        lines.append(
            f"delay in steps: median {spread[len(spread) // 2]}, from {spread[0]} to {spread[-1]}"
        )
    lines += [
        f"rival {name}: {score.rivals_found[name]} of {score.cases} found, "
        f"{score.rivals_accuse[name]} of {score.healthy} healthy accused"
        for name in ("2x mean", "10x max")
    ]
    lines.append("kind: cases that may show it, of these found by it")
    lines += [
        f"  {kind:28} {count:3} {score.kinds_found[kind]:3}"
        for kind, count in sorted(score.kinds_expected.items())
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
