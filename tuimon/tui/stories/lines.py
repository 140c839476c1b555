"""What a told incident is made of: labelled lines of coloured text, before they are wrapped."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from tuimon.model.text import plain

LABEL = 10  # cells of the word before a value

Part = tuple[str, str]  # text and palette name


class Line(msgspec.Struct, frozen=True):
    """One line of a story, before it is wrapped.

    Attributes:
        label: word of the left column; "" continues the line above.
        parts: pieces of the value with their colours.
        is_heading: the title of a section.
        indent: cells by which the value's second and later lines are moved in.
        is_whole: a row of a table, or code: broken between its parts where it does not fit.
    """

    parts: tuple[Part, ...] = ()
    label: str = ""
    is_heading: bool = False
    indent: int = 0
    is_whole: bool = False

    @property
    def text(self) -> str:
        """The value without colours."""
        return "".join(words for words, _ in self.parts)


def heading(words: str, note: str = "") -> list[Line]:
    """A blank line and the title of a section."""
    parts = [(words, "strong")] + ([(f"  {note}", "dim")] if note else [])
    return [Line(), Line(tuple(parts), is_heading=True)]


def pair(label: str, value: str, tone: str = "text", *, limit: int = 400) -> Line:
    """A word and its value."""
    return Line(((plain(value, limit), tone),), plain(label))


def table(
    rows: Sequence[Sequence[Part]],
    *,
    labels: Sequence[str] = (),
    right: frozenset[int] = frozenset(),
) -> list[Line]:
    """Aligned columns, the first rows with a word before them; those of `right` end together."""
    if not rows:
        return []
    widths = [max(len(row[c][0]) for row in rows) for c in range(len(rows[0]))]
    lines = []
    for index, row in enumerate(rows):
        parts: list[Part] = []
        for column, (words, tone) in enumerate(row):
            is_last = column == len(row) - 1
            wide = 0 if is_last else widths[column]
            shown = words.rjust(widths[column]) if column in right else words.ljust(wide)
            parts.append((shown if is_last or not widths[column] else f"{shown}  ", tone))
        lines.append(
            Line(tuple(parts), labels[index] if index < len(labels) else "", is_whole=True)
        )
    return lines


def place_lines(file: str | None, line: int | None, function: str, source: str) -> list[Line]:
    """File, line and function, then the source line itself."""
    if file is None:
        return []
    at = "" if line is None else f":{line}"
    inside = f"  in {function}" if function and function != "<module>" else ""
    parts = ((plain(f"{os.path.basename(file)}{at}"), "key"), (plain(inside), "dim"))
    lines = [Line(parts, "line")]
    if source:
        lines.append(Line(((plain(source), "strong"),), is_whole=True))
    return lines
