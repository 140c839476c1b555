"""The selected incident in whole: verdict, operation, causes, path, modules, symptoms, limits."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from tuimon.model.units import count
from tuimon.tui.draw.rows import Row, centred, fit, framed, text, thumb_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.event_log import selected
from tuimon.tui.scene import Scene
from tuimon.tui.stories.lines import LABEL, Line, Part
from tuimon.tui.stories.story import story
from tuimon.view.incidents import Incident, examined_at

_MARGIN = 1
_CONTINUED = 2  # cells by which what did not fit on a line is moved in


class IncidentPanel:
    """One entry of the list in words; scrolls when it has the focus."""

    name = "incident"
    can_focus = True
    rest_s = 0.0

    def key(self, scene: Scene) -> object:
        """Changes with the selection, with what is known of it, and with the scroll offset."""
        incident = shown_incident(scene)
        return (None if incident is None else incident, scene.log.top)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look = scene.look
        incident = shown_incident(scene)
        room, inner = height - 2, width - 2
        if incident is None:
            words = "nothing has gone wrong so far" if not scene.log.filter else ""
            title = [text(look, "incident", "strong", bold=True)]
            body = centred(look, words, inner, room)
            return framed(look, body, width, title=title, focused=focused)
        values = inner - _MARGIN - LABEL - 1
        rows = [row for line in story(incident, values) for row in wrapped(look, line, inner)]
        top = scene.log.top = max(0, min(scene.log.top, len(rows) - room))
        shown = [fit(look, row, inner) for row in rows[top : top + room]]
        shown += [fit(look, [], inner) for _ in range(room - len(shown))]
        word = "incident" if incident.severity == "critical" else "event"
        more = len(rows) - top - room
        return framed(
            look,
            shown,
            width,
            title=[text(look, word, "strong", bold=True)],
            reading=_reading(look, incident),
            foot_right=[text(look, f"{more:,} lines more", "dim")] if more > 0 else (),
            focused=focused,
            thumb=thumb_of(top, room, len(rows)),
        )


def shown_incident(scene: Scene) -> Incident | None:
    """The selected entry; an event that an autopsy looked at stands for that autopsy."""
    entry = selected(scene)
    if entry is None or entry.event is None:
        return entry
    return examined_at(scene.frame, entry.event) or entry


def _reading(look: Look, incident: Incident) -> list[Row]:
    groups: list[Row] = []
    if incident.step is not None:
        groups.append([text(look, f"step {count(incident.step)}", "dim")])
    if incident.kind:
        groups.append([text(look, incident.kind, "dim")])
    return groups


def wrapped(look: Look, line: Line, width: int) -> list[Row]:
    """A line of a story as rows of at most `width` cells; nothing of it is lost."""
    has_column = bool(line.label) or line.is_whole or line.indent > 0
    lead = _MARGIN + (LABEL if has_column else 0) + (line.indent if not line.label else 0)
    room = max(8, width - lead - 1)
    chunks = _broken(line.parts, room, between_parts=line.is_whole)
    rows: list[Row] = []
    for index, chunk in enumerate(chunks):
        if index == 0 and line.label:
            head = text(look, f"{' ' * _MARGIN}{line.label:<{LABEL}}", "dim")
        else:
            head = text(look, " " * (lead + (_CONTINUED if index else 0)))
        rows.append(
            [
                head,
                *(
                    text(look, words, tone, bold=line.is_heading and tone == "strong")
                    for words, tone in chunk
                ),
            ]
        )
    return rows or [[]]


def _broken(parts: Sequence[Part], room: int, *, between_parts: bool) -> list[list[Part]]:
    """Parts spread over lines: the first of `room` cells, the others a little shorter."""
    lines: list[list[Part]] = [[]]
    used = 0

    def limit() -> int:
        return room if len(lines) == 1 else room - _CONTINUED

    for words, tone in parts:
        if between_parts and used and used + cell_len(words.rstrip()) > limit():
            lines.append([])
            used = 0
        for piece in _pieces(words, room - _CONTINUED):
            size = cell_len(piece)
            if used and used + cell_len(piece.rstrip()) > limit():
                lines.append([])
                used = 0
                piece = piece.lstrip()
                size = cell_len(piece)
            if piece:
                lines[-1].append((piece, tone))
                used += size
    return [_joined(line) for line in lines]


def _pieces(words: str, longest: int) -> list[str]:
    """Words with the blanks before them; one that fits no line is cut."""
    pieces: list[str] = []
    current = ""
    for char in words:
        is_next = char == " " and current.strip()
        if is_next or cell_len(current) >= longest:
            pieces.append(current)
            current = ""
        current += char
    return [*pieces, current] if current else pieces


def _joined(line: list[Part]) -> list[Part]:
    """Neighbours of one colour as one part."""
    out: list[Part] = []
    for words, tone in line:
        if out and out[-1][1] == tone:
            out[-1] = (out[-1][0] + words, tone)
        else:
            out.append((words, tone))
    return out
