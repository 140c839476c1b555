"""What a person takes away from the screen: an incident as plain text, a picture of all of it.

Everything in it has passed `plain`: no control character of the training's data leaves with it.
"""

from __future__ import annotations

import re
from pathlib import Path

from tuimon.model.text import plain
from tuimon.tui.draw.svg import BACKGROUND, from_rows
from tuimon.tui.draw.theme import FULL
from tuimon.tui.event_log import headline
from tuimon.tui.keys.actions import ON_LAYERS, kind_of
from tuimon.tui.once import paint
from tuimon.tui.panels.incident import shown_incident
from tuimon.tui.scene import EVENTS, Scene
from tuimon.tui.stories.story import as_text
from tuimon.view.incidents import Incident, of_autopsy

MAX_COPIED = 50_000  # characters; some terminals drop a longer OSC 52 as a whole
_MAX_NAMES = 100  # files of one incident, or of one step, in one folder


def chosen(scene: Scene) -> Incident | None:
    """The incident that is meant: the one on the screen, elsewhere the newest."""
    if scene.screen == EVENTS:
        return shown_incident(scene)
    found = headline(scene)
    if found is not None and found.autopsy is not None:
        return of_autopsy(scene.frame, found.autopsy)
    return found


def copied(scene: Scene) -> tuple[str, str] | None:
    """(text, what it is) for the clipboard; None where there is nothing to copy."""
    if kind_of(scene.focus) == ON_LAYERS and scene.frame.layers is not None:
        rows = scene.heat.tree.rows()
        if rows:
            path = plain(rows[max(0, min(scene.heat.cursor, len(rows) - 1))].path)
            return path, path
    incident = chosen(scene)
    if incident is None:
        return None
    text = as_text(incident, run_words(scene))
    if len(text) > MAX_COPIED:
        text = text[:MAX_COPIED].rpartition("\n")[0] + "\n… cut here; w writes all of it\n"
    return text, f"{text.count(chr(10)):,} lines"


def run_words(scene: Scene) -> str:
    """Which run, for whoever reads the text elsewhere."""
    frame = scene.frame
    where = f" on {frame.host}" if frame.host else ""
    return f"{frame.name or frame.run_id}{where}, pid {frame.pid}, rank {frame.rank}"


def write_file(scene: Scene, folder: Path) -> str:
    """Write the incident to a new file of the folder; words that say where, or why not."""
    incident = chosen(scene)
    if incident is None:
        return "nothing has gone wrong so far: nothing was written"
    return _written(scene, incident.step, as_text(incident, run_words(scene)), folder, "txt")


def write_picture(scene: Scene, size: tuple[int, int], folder: Path) -> str:
    """Write what the screen shows to a new SVG of the folder; words that say where, or why not."""
    back = scene.look.colour("bg") if scene.look.colours == FULL else None
    picture = from_rows(paint(scene, *size), back or BACKGROUND)
    return _written(scene, scene.frame.step, picture, folder, "svg")


def _written(scene: Scene, step: int | None, text: str, folder: Path, kind: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", scene.frame.name).strip("-.")[:60] or "run"
    at = "" if step is None else f"-step-{step}"
    for number in range(1, _MAX_NAMES):
        again = "" if number == 1 else f"-{number}"
        place = folder / f"tuimon-{name}{at}{again}.{kind}"
        try:
            with place.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        except OSError as error:
            return f"not written: {error.strerror or error}: {place.absolute()}"
        return f"wrote {place.name} in {place.absolute().parent}"
    return f"{folder} holds {_MAX_NAMES - 1} files of this name: nothing was written"
