"""What the training has written: scrolls, follows the end, finds what is looked for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len

from tuimon.model.records import Output
from tuimon.model.units import count
from tuimon.tui.draw.rows import Row, centred, data, fit, framed, text, thumb_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.header import clock
from tuimon.tui.scene import Scene

_NONE = (
    "nothing is here: what a training prints goes to the terminal that it was started in\n\n"
    "`tuimon run --attach script.py` starts one in the background, and what it prints is here"
)
_TIME_COLUMNS = 90
_SIDE_CELLS = 16  # cells that h and l move
# What a person looks for in a log of a training.
_TROUBLE = re.compile(r"traceback|error|exception|\bnan\b|[+-]?\binf\b|killed|out of memory", re.I)
_WARNING = re.compile(r"warn", re.I)
PROGRESS = "progress"


class OutputPanel:
    """Lines, the newest last."""

    name = "output"
    can_focus = True
    rest_s = 0.2

    def key(self, scene: Scene) -> object:
        """Changes with the lines and with where the person is."""
        place, lines = scene.scroll(self.name), scene.frame.output
        newest = lines[-1] if lines else None
        return (len(lines), newest, place.top, place.is_at_end, place.filter, place.side)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, place = scene.look, scene.scroll(self.name)
        room, inner = height - 2, width - 2
        title: Row = [text(look, "output", "strong", bold=True)]
        lines = shown_lines(scene)
        if not lines:
            words = "no line matches  (esc shows all)" if place.filter else _NONE
            body = centred(look, words, inner, room)
            return framed(
                look, body, width, title=title, reading=_reading(scene, lines), focused=focused
            )
        top = place.settle(len(lines), room)
        timed = inner >= _TIME_COLUMNS
        shown = lines[top : top + room]
        body = [fit(look, _line(look, each, timed, place.side), inner) for each in shown]
        body += [fit(look, [], inner) for _ in range(room - len(body))]
        below = len(lines) - top - len(shown)
        where = f"{below:,} lines below  G follows" if below else "follows the end"
        return framed(
            look,
            body,
            width,
            title=title,
            reading=_reading(scene, lines),
            foot=[text(look, "/ only lines with  n N trouble", "dim")],
            foot_right=[text(look, where, "dim")],
            focused=focused,
            thumb=thumb_of(top, room, len(lines)),
        )


def shown_lines(scene: Scene) -> Sequence[Output]:
    """The lines that match what is looked for; all without."""
    wanted = scene.scroll(OutputPanel.name).filter
    if not wanted:
        return scene.frame.output
    try:
        matches = re.compile(wanted, re.IGNORECASE).search
    except re.error:
        low = wanted.lower()
        return [each for each in scene.frame.output if low in each.text.lower()]
    return [each for each in scene.frame.output if matches(each.text)]


def next_trouble(scene: Scene, direction: int) -> str | None:
    """Go to the next line that tells of trouble; words where there is none."""
    place, lines = scene.scroll(OutputPanel.name), shown_lines(scene)
    found = [at for at, each in enumerate(lines) if _TROUBLE.search(each.text)]
    if not found:
        return "no line so far has an error, a NaN or an Inf in it"
    ordered = found if direction > 0 else found[::-1]
    at = next((at for at in ordered if (at - place.top) * direction > 0), ordered[0])
    place.is_at_end, place.top = False, at
    return None


def sideways(scene: Scene, direction: int) -> None:
    """See more of long lines."""
    place = scene.scroll(OutputPanel.name)
    place.side = max(0, place.side + direction * _SIDE_CELLS)


def _reading(scene: Scene, lines: Sequence[Output]) -> list[Row]:
    look, place = scene.look, scene.scroll(OutputPanel.name)
    groups: list[Row] = []
    if place.filter:
        groups.append([data(look, f"/{place.filter}", "key")])
    if place.side:
        groups.append([text(look, f"from column {place.side:,}", "key")])
    if not scene.frame.output:
        return groups
    lost = scene.frame.lost.get("older output", 0)
    words = f"{count(len(lines))} lines" + (f", {count(lost)} older ones are gone" if lost else "")
    return [*groups, [text(look, words, "dim")]]


def _line(look: Look, line: Output, timed: bool, side: int) -> Row:
    words = line.text[side:] if side < len(line.text) else ""
    tone = "text"
    if line.stream == PROGRESS:
        tone = "key"
    elif _TROUBLE.search(line.text):
        tone = "bad"
    elif _WARNING.search(line.text):
        tone = "warn"
    elif line.text.startswith("tuimon:"):
        tone = "dim"
    row: Row = [text(look, " ")]
    if timed:
        row.append(text(look, f"{clock(line.time_s)}  ", "faint"))
    if side and cell_len(line.text):
        row.append(text(look, look.glyphs.ellipsis, "faint"))
    return [*row, data(look, words, tone)]
