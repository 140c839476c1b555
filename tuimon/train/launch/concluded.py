"""What the scribe has concluded, read from the report in the run folder at the end of a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuimon.feed import private
from tuimon.model.causes import SEVERITIES, UNKNOWN
from tuimon.model.explained import EXPLAINED
from tuimon.model.findings import REFUTED
from tuimon.model.text import plain
from tuimon.model.units import percent

MAX_REMEDY = 300
_DONE_BYTES = 64 << 10


def trouble_with_report(folder: Path) -> str:
    """Why the report is not where it was asked for, as the scribe has said; "" where it is."""
    try:
        said = private.read_small(folder / "report.done", _DONE_BYTES)
    except OSError:
        return ""
    return plain(said.decode("utf-8", "replace").strip(), 400)


def findings_from(report: Path, severity: str) -> list[str]:
    """Causes of a report that are at least so severe, the verdict first; refuted ones do not count.

    Raises:
        OSError: there is no report.
        ValueError: it is not one.
    """
    found = _findings(json.loads(report.read_bytes()), severity)
    return [f"{each['cause']} at step {each['step']}" for each in found]


def cause_lines(report: Path) -> list[str]:
    """The likeliest cause and what helps, for the end of a run; none where nothing was found.

    Raises:
        OSError: there is no report.
        ValueError: it is not one.
    """
    document = json.loads(report.read_bytes())
    found = _findings(document, "warning")
    if not found:
        return []
    first = found[0]
    rank = first["where"].get("rank")
    several = document.get("run", {}).get("ranks", 1) > 1 and rank is not None
    on = f" on rank {rank}" if several else ""
    slug = first["cause"]
    known = EXPLAINED.get(slug)
    title = known.title if known else slug
    if slug == UNKNOWN:
        return [plain(f"cause{on}: not known. {first['remedy']['text']}", MAX_REMEDY)]
    sure = f"{slug}, {first['status']}, {percent(round(first['confidence'], 2))}"
    others = ", ".join(each["cause"] for each in found[1:3])
    told = f"cause{on}: {title} ({sure})" + (f"; less likely: {others}" if others else "")
    remedy = first["remedy"]["text"] or (known.remedy if known else "")
    lines = [told]
    if remedy:
        lines.append(f"remedy: {plain(remedy, MAX_REMEDY)}  More: tuimon explain {slug}")
    return [plain(line, 500) for line in lines]


def _findings(document: dict[str, Any], severity: str) -> list[dict[str, Any]]:
    bound = SEVERITIES.index(severity)
    return [
        each
        for each in document["findings"]
        if SEVERITIES.index(each["severity"]) >= bound and each["status"] != REFUTED
    ]
