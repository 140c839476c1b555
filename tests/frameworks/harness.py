"""Runs the scripts of this folder: bare, under `tuimon run`, and telling tuimon themselves."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuimon.feed import registry
from tuimon.feed.codec import decode
from tuimon.feed.ring import RingReader
from tuimon.model.records import Event, LayerTable, Record, Step

SCRIPTS = Path(__file__).with_name("scripts")
START_LIMIT_S = 900  # importing these libraries takes a minute of processor time; bounds a hang


@dataclass(frozen=True)
class Seen:
    """What one run of a script left behind.

    Attributes:
        truths: by case, what the script knows of its training.
        ours: lines of tuimon on stderr.
        theirs: stderr without them.
        records: what was published, in order; empty for a bare run.
    """

    truths: dict[str, dict[str, Any]]
    ours: list[str]
    theirs: list[str]
    records: list[Record]

    @property
    def steps(self) -> list[Step]:
        """Every update."""
        return [record for record in self.records if isinstance(record, Step)]

    def steps_of(self, case: str) -> list[Step]:
        """The updates of one case."""
        counts = {name: len(truth["micro"]) for name, truth in self.truths.items()}
        before = sum(counts[name] for name in list(counts)[: list(counts).index(case)])
        return self.steps[before : before + counts[case]]

    def names_at(self, step: Step) -> list[str]:
        """Names of the parameters that the norms of an update speak of."""
        tables = [record for record in self.records if isinstance(record, LayerTable)]
        (table,) = {t.epoch: t for t in tables if t.epoch == step.epoch}.values()
        return table.names

    @property
    def warnings(self) -> list[str]:
        """Warnings that tuimon published about itself."""
        return [
            f"{record.kind}: {record.text}"
            for record in self.records
            if isinstance(record, Event) and record.kind.startswith("tap-")
        ]


def run(
    how: str, script: str, cases: Sequence[str], folder: Path, environ: Mapping[str, str]
) -> Seen:
    """Run a script once, `how` is "bare", "run" (under `tuimon run`) or "watch"."""
    out = folder / f"{how}.json"
    home = folder / how
    words = [sys.executable, *(["-m", "tuimon", "run"] if how == "run" else [])]
    words += [str(SCRIPTS / script), str(out), "watch" if how == "watch" else "", *cases]
    quiet = {"TUIMON_DIR": str(home), "TUIMON_SCRIBE": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        words,
        cwd=folder,
        env={**environ, **quiet},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )
    lines = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    return Seen(
        truths={truth["name"]: truth for truth in json.loads(out.read_text())},
        ours=[line for line in lines if line.startswith("tuimon:")],
        theirs=[line for line in lines if not line.startswith("tuimon:")],
        records=[] if how == "bare" else _records(home),
    )


def _records(home: Path) -> list[Record]:
    (file,) = home.rglob("run.json")
    reader = RingReader(registry.load(file.parent).ring())
    found: list[Record] = list(map(decode, reader.read(100_000, max_s=30)))
    assert not any(reader.lost.values())
    reader.close()
    return found


def same(left: float | None, right: float | None) -> bool:
    """Equal as single-precision arithmetic in another order leaves it; NaN equals NaN."""
    if left is None or right is None:
        return left is right
    both_nan = math.isnan(left) and math.isnan(right)
    return both_nan or math.isclose(left, right, rel_tol=1e-5, abs_tol=1e-7)
