"""The event log: what happened, newest first, and the ledger of commands."""

from __future__ import annotations

from rich.cells import cell_len

from tuimon.model.commands import title_words
from tuimon.model.records import CommandState
from tuimon.model.text import plain
from tuimon.tui.draw.rows import Row, centred, data, fit, framed, text, thumb_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.event_log import entries
from tuimon.tui.panels.header import clock
from tuimon.tui.panels.system import in_sight
from tuimon.tui.scene import EVENTS, Scene
from tuimon.view.incidents import Incident

_TIME_COLUMNS = 50  # a narrower list has no room for the time of day
_SHORT, _WHOLE = 2, 12  # lines of an event's sentence
_LEAD = 22  # cells beside it at most: a mark, the time of day, the step
_COLOURS = {"critical": "bad", "warning": "warn"}


def mark_of(look: Look, severity: str) -> tuple[str, str]:
    """(glyph, colour) of a severity."""
    glyphs = {"critical": look.glyphs.critical, "warning": look.glyphs.warning}
    return glyphs.get(severity, look.glyphs.info), _COLOURS.get(severity, "key")


def command_words(state: CommandState) -> str:
    """A command's life in one line."""
    words = f"{state.words or title_words(state.command)} {state.state}"
    if state.state == "applied" and state.step is not None:
        words += f" at step {state.step:,}"
    if changed := " → ".join(filter(None, (state.old, state.new))):
        words += f" ({changed})"
    if state.reason:
        words += f": {state.reason}"
    return plain(words)


class EventsPanel:
    """What happened, newest first; on its own screen with a cursor, and the rest beside it."""

    name = "events"
    can_focus = True
    rest_s = 0.0

    def __init__(self) -> None:
        self.entry_of_row: list[int] = []  # of the list as last drawn, for the mouse

    def key(self, scene: Scene) -> object:
        """Changes with the events and the cursor."""
        shown = entries(scene)
        newest = shown[0].identity if shown else None
        return (len(shown), newest, scene.log.cursor, scene.log.filter, scene.screen)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look = scene.look
        events = entries(scene)
        title = [text(look, "events", "strong", bold=True)]
        critical = sum(event.severity == "critical" for event in events)
        reading = [[text(look, f"{critical} critical", "bad", bold=True)]] if critical else []
        if scene.log.filter:
            reading.append([data(look, f"/{scene.log.filter}", "key")])
        reading.append([text(look, f"{len(events):,}", "dim")])
        room, inner = height - 2, width - 2
        if not events:
            words = "nothing matches" if scene.log.filter else "no events yet"
            body, thumb = centred(look, words, inner, room), None
        else:
            body = self._list(scene, events, inner, room)
            rows = max(1, len(set(self.entry_of_row)))  # of these the list is so many times as long
            first = self.entry_of_row[0] * room // rows
            thumb = thumb_of(first, room, len(events) * room // rows)
        return framed(look, body, width, title=title, reading=reading, focused=focused, thumb=thumb)

    def _list(self, scene: Scene, events: list[Incident], width: int, room: int) -> list[Row]:
        """Events from the top, scrolled so that the cursor's is whole."""
        look = scene.look
        own_screen = scene.screen == EVENTS or scene.zoomed
        cursor = scene.log.cursor if own_screen else -1
        blocks: list[list[Row]] = []
        used, start = 0, 0
        most = _lines_each(events, width, room)
        for index, event in enumerate(events):
            selected = index == cursor
            block = self._event(
                look, event, width, most=most, selected=selected, own_screen=own_screen
            )
            blocks.append(block)
            used += len(block)
            if index >= max(cursor, 0):
                if used >= room:
                    break
            else:
                while used > room - 4 and start < index:
                    used -= len(blocks[start])
                    start += 1
        rows = [row for block in blocks[start:] for row in block][:room]
        self.entry_of_row = [at for at, block in enumerate(blocks) if at >= start for _ in block][
            :room
        ]
        return rows + [fit(look, [], width) for _ in range(room - len(rows))]

    def _event(
        self,
        look: Look,
        event: Incident,
        width: int,
        *,
        most: int,
        selected: bool,
        own_screen: bool,
    ) -> list[Row]:
        mark, colour = mark_of(look, event.severity)
        bg, quiet = ("selected", "text") if selected else ("", "dim")
        step = "" if event.step is None else f"{event.step:,}"
        when = f"{clock(event.time_s)}  " if own_screen and width >= _TIME_COLUMNS else ""
        strong = "strong" if event.severity != "info" else "text"
        if event.is_examined and event.severity == "critical":
            strong = "bad"
        pad = look.style("text", bg)
        bold = event.is_examined
        room = width - cell_len(step) - 2
        lead = 3 + cell_len(when)
        words = wrapped(event.text, room - lead, limit=most)
        left = [
            text(look, f" {mark} ", colour, bg, bold=True),
            text(look, when, quiet, bg),
            data(look, words[0] if words else "", strong, bg, bold=bold),
        ]
        rows = [[*fit(look, left, room, pad=pad), text(look, f" {step} ", quiet, bg)]]
        for line in words[1:]:
            part = data(look, " " * lead + line, strong, bg, bold=bold)
            rows.append(fit(look, [part], width, pad=pad))
        if own_screen:  # the panel beside it shows the rest
            return rows
        indent = " " * lead
        rows += [
            fit(look, [text(look, indent + line, quiet, bg)], width, pad=pad)
            for line in wrapped(event.detail, width - 5, limit=3)
        ]
        return rows


def _lines_each(events: list[Incident], width: int, room: int) -> int:
    """Lines that the sentence of an event may take: all of them where the list has the room."""
    if len(events) * _SHORT > room:
        return _SHORT
    details = sum(len(wrapped(event.detail, width - 5, limit=3)) for event in events)
    narrow = max(1, width - _LEAD)
    lines = sum(len(wrapped(event.text, narrow, limit=_WHOLE)) for event in events)
    return _WHOLE if lines + details <= room else _SHORT


def wrapped(detail: str, width: int, *, limit: int) -> list[str]:
    """Detail lines as the event wrote them, each made plain and cut into lines that fit."""
    lines: list[str] = []
    for part in detail.splitlines():
        current = ""
        for word in plain(part).split(" "):
            if current and cell_len(current) + 1 + cell_len(word) > width:
                lines.append(current)
                current = "  " + word
            else:
                current = f"{current} {word}" if current else word
        if current.strip():
            lines.append(current)
    if len(lines) > limit:
        last = lines[limit - 1]
        if cell_len(last) >= width:
            last = last.rpartition(" ")[0] or last[: width - 1]
        lines = [*lines[: limit - 1], last.rstrip() + "…"]
    return lines


class LedgerPanel:
    """Commands and how far each has come."""

    name = "ledger"
    can_focus = True
    rest_s = 0.0

    def key(self, scene: Scene) -> object:
        """Changes with the commands."""
        return (scene.frame.commands, scene.scroll(self.name).top)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, room = scene.look, height - 2
        title = [text(look, "commands", "strong", bold=True)]
        colours = {"applied": "ok", "refused": "bad", "expired": "warn"}
        rows: list[Row] = []
        for state in reversed(scene.frame.commands):
            who = f"  {clock(state.asked_at_s)} {state.by}" if state.by else ""
            colour = colours.get(state.state, "text")
            line = [data(look, f" {command_words(state)}", colour), data(look, who, "dim")]
            rows.append(fit(look, line, width - 2))
        if not rows:
            rows = centred(look, "no command has been sent to this run", width - 2, room)
        count = len(scene.frame.commands)
        reading = [[text(look, f"{count:,}", "dim")]] if count else []
        rows, thumb = in_sight(scene, self.name, rows, (width - 2, room))
        return framed(look, rows, width, title=title, reading=reading, focused=focused, thumb=thumb)
