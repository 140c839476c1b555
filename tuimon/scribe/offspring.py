"""Reports of the processes that a launcher spawned, joined into its own.

A script that only spawns ranks makes no step itself: what became of them is its result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuimon.feed import registry
from tuimon.feed.registry import RunInfo
from tuimon.model.causes import OUTCOMES, SEVERITIES

WAIT_S = 5.0  # for the scribes of children that have just ended
_POLL_S = 0.05
MAX_CHILDREN = 64


def children_of(info: RunInfo) -> list[RunInfo]:
    """The runs of processes that the trainer of `info` spawned."""
    pid = info.main_pid
    return [
        each
        for each in registry.list_runs()
        if each.parent_pid == pid
        and each.id != info.id
        and each.host == info.host
        and each.started_at_s >= info.started_at_s
    ][:MAX_CHILDREN]


def join(
    document: dict[str, Any], info: RunInfo, *, rest: Callable[[float], None] = time.sleep
) -> None:
    """Add what reports of spawned processes say to that of a process that made no step itself.

    Args:
        document: the report; changed in place.
        info: of its run.
        rest: waits so many seconds.
    """
    reports = [
        report for each in children_of(info) if (report := _report(each.path, rest)) is not None
    ]
    if not reports:
        return
    for report in reports:
        for name in ("symptoms", "findings", "autopsies", "trials"):
            document[name] += report[name]
        run = report["run"]
        document["run"]["ranks"] = max(document["run"]["ranks"], run["ranks"])
        document["run"]["steps"] = max(document["run"]["steps"], run["steps"])
    document["findings"].sort(key=_weight, reverse=True)
    outcomes = [document["outcome"], *(report["outcome"] for report in reports)]
    document["outcome"] = min(outcomes, key=OUTCOMES.index)


def _report(folder: Path, rest: Callable[[float], None]) -> dict[str, Any] | None:
    waited_s = 0.0
    while not (folder / "report.done").exists() and waited_s < WAIT_S:
        rest(_POLL_S)
        waited_s += _POLL_S
    try:
        report: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
    except (OSError, ValueError):
        return None
    return report


def _weight(finding: dict[str, Any]) -> tuple[bool, int, float]:
    refuted = finding["status"] == "refuted"
    return not refuted, SEVERITIES.index(finding["severity"]), finding["confidence"]
