"""Rows of styled text: cut, spread, framed. A row is a list of segments of one-cell glyphs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from tuimon.model.text import plain
from tuimon.tui.draw.glyphs import BRAILLE, spelt
from tuimon.tui.draw.theme import Look

Row = list[Segment]

_FEW_CELLS = 14


def text(
    look: Look, content: str, fg: str = "text", bg: str = "", *, bold: bool = False
) -> Segment:
    """One segment in the look's style. The content is ours; data goes through `data`."""
    return Segment(content, look.style(fg, bg, bold=bold))


def data(
    look: Look, content: str, fg: str = "text", bg: str = "", *, bold: bool = False
) -> Segment:
    """One segment of text that came from the training, made safe for a terminal."""
    return Segment(plain(content), look.style(fg, bg, bold=bold))


def width_of(row: Sequence[Segment]) -> int:
    """Cells a row takes."""
    return sum(cell_len(part.text) for part in row)


def fit(look: Look, row: Sequence[Segment], width: int, *, pad: Style | None = None) -> Row:
    """Exactly `width` cells: cut with an ellipsis, or padded with blanks."""
    out: Row = []
    left = width
    for part in row:
        words = part.text
        size = len(words) if words.isascii() else cell_len(words)
        if size > left:
            if left > 0:
                cut = set_cell_size(words, left - 1) + look.glyphs.ellipsis
                out.append(Segment(cut, part.style))
            return out
        if size:
            out.append(part)
            left -= size
    if left > 0:
        out.append(Segment(" " * left, pad or look.style()))
    return out


def shortened(look: Look, words: str, width: int) -> str:
    """At most `width` cells of a sentence, cut behind a word where that leaves enough of it.

    Of what stands behind two blanks nothing is left rather than a word or two.
    """
    if cell_len(words) <= width:
        return words
    head = set_cell_size(words, max(0, width - 1))
    place = head.rfind("  ")
    if not len(head) // 2 < place > len(head) - _FEW_CELLS:
        place = head.rfind(" ")
    return (head[:place] if place > width // 2 else head).rstrip(" ,;:") + look.glyphs.ellipsis


def chunks(words: str, width: int) -> list[str]:
    """Lines of at most `width` cells, cut at blanks where there are any."""
    lines: list[str] = []
    current = ""
    for word in words.split(" "):
        while cell_len(word) > width:
            lines += [current] if current else []
            current, word = "", word
            lines.append(word[:width])
            word = word[width:]
        if current and cell_len(current) + 1 + cell_len(word) > width:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}" if current else word
    return [*lines, current]


def spread(
    look: Look,
    left: Sequence[Row],
    right: Sequence[Row],
    width: int,
    *,
    gap: int = 2,
) -> Row:
    """Groups at both ends of a line; what does not fit goes, least important first.

    The first group of the left and the last of the right stay; the middle gives way.
    """
    lefts, rights = list(left), list(right)

    def total() -> int:
        groups = [*lefts, *rights]
        return sum(width_of(group) for group in groups) + gap * max(0, len(groups) - 1)

    while total() > width and (len(lefts) > 1 or len(rights) > 1):
        if len(lefts) > 1 and len(lefts) >= len(rights):
            lefts.pop()
        elif len(rights) > 1:
            rights.pop(0)
        else:
            lefts.pop()
    space = Segment(" " * gap, look.style())
    head = _joined(lefts, space)
    tail = _joined(rights, space)
    return fit(look, [*fit(look, head, max(0, width - width_of(tail))), *tail], width)


def _joined(groups: Sequence[Row], space: Segment) -> Row:
    out: Row = []
    for index, group in enumerate(groups):
        if index:
            out.append(space)
        out.extend(group)
    return out


def framed(
    look: Look,
    body: Sequence[Row],
    width: int,
    *,
    title: Sequence[Segment],
    reading: Sequence[Row] = (),
    foot: Sequence[Segment] = (),
    foot_right: Sequence[Segment] = (),
    ruler: Sequence[Segment] = (),
    focused: bool = False,
    thumb: tuple[int, int] | None = None,
) -> list[Row]:
    """A box whose edges carry a title, readings and a foot.

    Args:
        reading: groups for the right end of the top edge; the last ones give way first.
        ruler: the whole content of the bottom edge, in place of a foot.
        thumb: rows [start, end) of the right edge drawn as a scroll thumb.
    """
    box = look.glyphs.box
    line = look.style("focus" if focused else "line")
    side = Segment(box[5], line)
    mark = Segment(look.glyphs.thumb, look.style("focus" if focused else "dim"))
    readings = _readings(look, reading, width, title)
    rows = [_edge(look, (box[0], box[1]), width, line, parts=(title, readings))]
    for index, row in enumerate(body):
        end = mark if thumb and thumb[0] <= index < thumb[1] else side
        rows.append([side, *fit(look, row, width - 2), end])
    if ruler:
        corners = Segment(box[2], line), Segment(box[3], line)
        rows.append([corners[0], *ruler, corners[1]])
    else:
        rows.append(_edge(look, (box[2], box[3]), width, line, parts=(foot, foot_right)))
    return rows


def _readings(look: Look, groups: Sequence[Row], width: int, title: Sequence[Segment]) -> Row:
    kept = list(groups)
    room = width - 10 - width_of(title)
    while kept and sum(width_of(group) + 2 for group in kept) > room:
        kept.pop()
    return _joined(kept, Segment("  ", look.style()))


def _edge(
    look: Look,
    corners: tuple[str, str],
    width: int,
    line: Style,
    *,
    parts: tuple[Sequence[Segment], Sequence[Segment]],
) -> Row:
    rail = look.glyphs.box[4]
    blank = Segment(" ", look.style())
    left = [Segment(rail, line), blank, *parts[0], blank] if parts[0] else []
    right = [blank, *parts[1], blank, Segment(rail, line)] if parts[1] else []
    room = width - 2 - width_of(left) - width_of(right)
    if room < 0:
        right = []
        left = fit(look, left, max(0, min(width - 2, width_of(left))))
        room = width - 2 - width_of(left)
    middle = [Segment(rail * room, line)] if room > 0 else []
    return [Segment(corners[0], line), *left, *middle, *right, Segment(corners[1], line)]


def centred(look: Look, words: str, width: int, height: int, *, fg: str = "dim") -> list[Row]:
    """A block of rows with sentences in its middle, wrapped at blanks."""
    lines: list[str] = []
    for paragraph in words.split("\n"):
        current = ""
        for word in paragraph.split():
            if current and cell_len(current) + 1 + cell_len(word) > width - 2:
                lines.append(current)
                current = word
            else:
                current = f"{current} {word}".strip()
        lines.append(current)
    if 0 < height < len(lines):
        lines[height - 1] = shortened(look, " ".join(lines[height - 1 : height + 1]), width - 2)
    above = max(0, (height - len(lines)) // 2)
    rows = [fit(look, [], width) for _ in range(above)]
    for item in lines[: max(0, height - above)]:
        left = max(0, (width - cell_len(item)) // 2)
        rows.append(fit(look, [text(look, " " * left + item, fg)], width))
    rows += [fit(look, [], width) for _ in range(height - len(rows))]
    return rows


def thumb_of(top: int, visible: int, total: int) -> tuple[int, int] | None:
    """Where the scroll thumb lies in the right edge; None where everything is in sight."""
    if total <= visible:
        return None
    start = top * visible // total
    return start, max(start + 1, (top + visible) * visible // total)


def in_alphabet(look: Look, rows: Sequence[Row]) -> list[Row]:
    """The rows with nothing outside the look's alphabet."""
    if look.glyphs is BRAILLE:
        return list(rows)
    return [[Segment(spelt(look.glyphs, part.text), part.style) for part in row] for row in rows]
