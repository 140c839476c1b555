"""The answer to a look at one layer: each tensor in figures, with its histogram."""

from __future__ import annotations

from tuimon.model.inspection import Inspected, InspectReply
from tuimon.model.text import plain
from tuimon.model.units import duration_s
from tuimon.tui.draw.rows import Row, centred, data, fit, framed, text
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.events import wrapped
from tuimon.tui.panels.sampled import histogram_rows
from tuimon.tui.scene import Scene
from tuimon.view.frame import HELD, PAUSED
from tuimon.view.looks import figures, headline, title_of

_TWO_COLUMNS = 100  # cells from which a parameter and its gradient stand side by side
_LABEL = 11
_LINES = 3  # of one value


class LookPanel:
    """One reply; scrolls."""

    name = "look"
    can_focus = True
    rest_s = 0.0

    def key(self, scene: Scene) -> object:
        """Changes with the reply, with what is waited for, and with the scroll offset."""
        desk = scene.look_desk
        reply = shown_reply(scene)
        return (None if reply is None else reply.id, desk.layer, desk.top, _waiting(scene))

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, desk = scene.look, scene.look_desk
        room, inner = height - 2, width - 2
        reply = shown_reply(scene)
        title: Row = [text(look, "inspect", "strong", bold=True)]
        if reply is None:
            return framed(
                look,
                centred(look, _waiting(scene), inner, room),
                width,
                title=title,
                focused=focused,
            )
        title += [text(look, "  "), data(look, headline(reply), "key")]
        rows = reply_rows(look, reply, inner)
        top = desk.top = max(0, min(desk.top, len(rows) - room))
        shown = [fit(look, row, inner) for row in rows[top : top + room]]
        shown += [fit(look, [], inner) for _ in range(room - len(shown))]
        more = len(rows) - top - room
        return framed(
            look,
            shown,
            width,
            title=title,
            reading=[[text(look, f"took {duration_s(reply.took_s)}", "dim")]],
            foot=[text(look, "esc back", "dim")],
            foot_right=[text(look, f"{more:,} lines more", "dim")] if more > 0 else (),
            focused=focused,
        )


def shown_reply(scene: Scene) -> InspectReply | None:
    """The newest answer about the layer that was asked for."""
    wanted = scene.look_desk.layer
    replies = reversed(scene.frame.inspections)
    return next((each for each in replies if each.layer == wanted or not wanted), None)


def _waiting(scene: Scene) -> str:
    """What stands in place of a reply."""
    layer = scene.look_desk.layer
    if not layer:
        return "nothing was looked at so far: i on a layer, while the training waits"
    newest = next((c for c in reversed(scene.frame.commands) if c.command == "Inspect"), None)
    if newest is not None and newest.state in ("refused", "expired"):
        return plain(f"{layer}: {newest.reason or newest.state}")
    if scene.frame.state in (PAUSED, HELD):
        return plain(f"looking at {layer}")
    return plain(f"{layer} is looked at before the next update")


def reply_rows(look: Look, reply: InspectReply, width: int) -> list[Row]:
    """All of a reply, in one column or two."""
    rows: list[Row] = []
    if width < _TWO_COLUMNS:
        for item in reply.items:
            rows += [*_block(look, item, width), []]
    else:
        half = (width - 1) // 2
        for one, two in _pairs(reply.items):
            left = _block(look, one, half)
            right: list[Row] = [] if two is None else _block(look, two, half)
            height = max(len(left), len(right))
            left += [[] for _ in range(height - len(left))]
            right += [[] for _ in range(height - len(right))]
            rows += [
                [*fit(look, first, half), text(look, " "), *fit(look, second, half)]
                for first, second in zip(left, right, strict=True)
            ]
            rows.append([])
    for note in reply.notes:
        rows += [[data(look, f" {line}", "dim")] for line in wrapped(note, width - 2, limit=_LINES)]
    return rows


def _pairs(items: list[Inspected]) -> list[tuple[Inspected, Inspected | None]]:
    """A parameter with its gradient; outputs two by two."""
    pairs: list[tuple[Inspected, Inspected | None]] = []
    for item in items:
        last = pairs[-1] if pairs else None
        if last is not None and last[1] is None:
            is_gradient = item.what == "gradient" and item.name == last[0].name
            if is_gradient or item.what == last[0].what == "output":
                pairs[-1] = (last[0], item)
                continue
        pairs.append((item, None))
    return pairs


def _block(look: Look, item: Inspected, width: int) -> list[Row]:
    rows: list[Row] = [[data(look, f" {title_of(item)}", "strong", bold=True)]]
    for figure in figures(item):
        colour = "bad" if figure.is_bad else "ok" if figure.word == "finite" else "text"
        lines = wrapped(figure.value, width - _LABEL - 1, limit=_LINES)
        for index, line in enumerate(lines):
            word = figure.word if index == 0 else ""
            head = text(look, f" {word:<{_LABEL - 1}}", "dim")
            rows.append([head, data(look, line, colour)])
    if item.histogram is not None:
        rows += histogram_rows(look, "histogram", item.histogram, width)
    return rows
