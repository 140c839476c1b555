"""The post-mortem as Markdown, for an issue or a chat: text only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuimon.export import story
from tuimon.export.elements import plain_lines
from tuimon.export.page import surroundings
from tuimon.export.parting import Parting
from tuimon.export.postmortem import PostMortem
from tuimon.export.story import Section

# What would be read as markup; < and & also as HTML.
_SPECIAL = re.compile(r"([\\`*{}\[\]<>#|&~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def markdown(runs: Sequence[PostMortem], parting: Parting | None = None) -> str:
    """The report of one or two runs."""
    parts = []
    if parting is not None:
        parts.append(f"# {escaped(' and '.join(each.title for each in runs))}: where they part\n")
        parts += [_section(each) for each in parting.sections()]
    for run in runs:
        verdict = story.verdict(run.document)
        parts.append(f"# {escaped(run.title)}\n")
        told = [verdict, *story.sections(run.document)]
        told.append(story.environment(run.document, *surroundings(run)))
        parts += [_section(each) for each in told]
    return "\n".join(parts)


def escaped(text: str) -> str:
    """One line that shows as it is."""
    return _SPECIAL.sub(r"\\\1", plain_lines(text).replace("\n", " "))


def _section(section: Section) -> str:
    lines = [f"## {escaped(section.title)}", ""]
    for each in section.text:
        lines += [escaped(each), ""] if each else []
    lines += [f"- {escaped(each)}" for each in section.points]
    lines += [""] if section.points else []
    if section.code:
        code = plain_lines(section.code)
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", code))])
        lines += [fence, code, fence, ""]
    if section.table is not None:
        head = section.table.head
        lines += [_row(head), "|" + " --- |" * len(head)]
        lines += [_row(row) for row in section.table.rows]
        lines.append("")
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escaped(each) for each in cells) + " |"
