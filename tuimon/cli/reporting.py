"""`tuimon report`: a post-mortem of one run or of two, as HTML, Markdown or JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click

from tuimon.errors import Refused, UsageError
from tuimon.model.text import plain

_KINDS = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".json": "json"}


def write(runs: Sequence[str], output: str) -> int:
    """Write the report of one or two runs to a file, or to stdout where that is "-".

    Raises:
        UsageError: the name of the file tells no format, or there are too many runs.
        NoSuchRun, Refused, IncompatibleVersion: as their messages say.
    """
    if len(runs) > 2:
        raise UsageError("a report is about one run, or two to compare")
    kind = "md" if output == "-" else _KINDS.get(Path(output).suffix.lower())
    if kind is None:
        raise UsageError(f"{plain(output, 80)!r} tells no format; end it in .html, .md or .json")
    from tuimon.feed import private

    text, unfinished = _text(list(runs), kind)
    for each in unfinished:
        click.echo(f"tuimon: {plain(each, 200)}", err=True)
    if output == "-":
        click.echo(text, nl=False)
        return 0
    try:
        private.put(Path(output), text.encode())
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Refused(f"cannot write {plain(output, 200)}: {why}") from error
    click.echo(f"{plain(output, 200)}: {len(text.encode()):,} bytes", err=True)
    return 0


def _text(tokens: list[str], kind: str) -> tuple[str, list[str]]:
    """The report, and a sentence for each run in it whose end is not known."""
    from tuimon.export.markdown import markdown
    from tuimon.export.page import page
    from tuimon.export.parting import compare
    from tuimon.export.postmortem import RUNNING, UNRECORDED, open_run

    found = [open_run(each) for each in tokens] or [open_run(None)]
    parting = compare(*found) if len(found) == 2 else None
    ends = [each.document["run"].get("exit") or {} for each in found]
    unfinished = [
        f"{run.title}: {end.get('detail')}"
        for run, end in zip(found, ends, strict=True)
        if end.get("kind") in (RUNNING, UNRECORDED)
    ]
    if kind == "html":
        return page(found, parting, written_at_s=time.time()), unfinished
    if kind == "md":
        return markdown(found, parting), unfinished
    documents = [each.document for each in found]
    whole = documents[0] if parting is None else {**parting.document(), "runs": documents}
    return json.dumps(whole, allow_nan=False, ensure_ascii=True, indent=1) + "\n", unfinished
