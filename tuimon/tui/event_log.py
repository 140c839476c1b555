"""The list of what happened as the person sees it: filtered, with one entry selected.

A selection stays on its entry while newer ones come in above it.
"""

from __future__ import annotations

from tuimon.tui.scene import EVENTS, Scene
from tuimon.view.frame import HELD
from tuimon.view.incidents import CRITICAL, Incident, incidents, newest, of_autopsy


def entries(scene: Scene) -> list[Incident]:
    """Newest first, those that match the filter."""
    frame, desk = scene.frame, scene.log
    now = (frame.events, frame.autopsies, frame.crash, frame.findings, frame.trials)
    known = desk.seen is not None and all(a is b for a, b in zip(desk.seen, now, strict=True))
    if not known or desk.seen_filter != desk.filter:
        wanted = desk.filter.lower()
        found = incidents(frame)
        desk.entries = [each for each in found if wanted in _searched(each)] if wanted else found
        desk.seen, desk.seen_filter = now, desk.filter
        _settle(scene)
    return desk.entries


def headline(scene: Scene) -> Incident | None:
    """The newest thing that went wrong, whether or not its line has been hidden."""
    frame, desk = scene.frame, scene.log
    held = frame.events if frame.state == HELD else None
    now = (frame.alert, frame.autopsies, frame.crash, held, frame.findings, frame.trials)
    if desk.told is None or not all(a is b for a, b in zip(desk.told, now, strict=True)):
        desk.told, desk.headline = now, newest(frame)
    return desk.headline


def _searched(incident: Incident) -> str:
    return f"{incident.kind} {incident.text} {incident.detail}".lower()


def _settle(scene: Scene) -> None:
    """Find the selected entry again after the list has changed."""
    desk = scene.log
    for index, entry in enumerate(desk.entries):
        if entry.identity == desk.anchor:
            desk.cursor = index
            return
    desk.anchor = None
    desk.cursor = max(0, min(desk.cursor, len(desk.entries) - 1))


def selected(scene: Scene) -> Incident | None:
    """The entry under the cursor."""
    found = entries(scene)
    if not found:
        return None
    return found[max(0, min(scene.log.cursor, len(found) - 1))]


def select(scene: Scene, index: int) -> None:
    """Put the cursor on an entry; at the top it follows what is new."""
    found = entries(scene)
    desk = scene.log
    desk.cursor = max(0, min(index, len(found) - 1))
    desk.anchor = found[desk.cursor].identity if found and desk.cursor else None
    desk.top = 0


def select_bad(scene: Scene, direction: int) -> str | None:
    """The next, or the last, critical entry; words where there is none."""
    found = entries(scene)
    bad = [index for index, entry in enumerate(found) if entry.severity == CRITICAL]
    if not bad:
        return f"no critical event{' in this filter' if scene.log.filter else ''} so far"
    at = scene.log.cursor
    if direction > 0:
        select(scene, next((index for index in bad if index > at), bad[0]))
    else:
        select(scene, next((index for index in reversed(bad) if index < at), bad[-1]))
    return None


def open_newest(scene: Scene) -> str | None:
    """Show the newest incident on its screen; words where there is none."""
    incident = headline(scene)
    if scene.frame.autopsies:  # one that somebody asked for is no incident, but wanted
        last = of_autopsy(scene.frame, scene.frame.autopsies[-1])
        if incident is None or last.time_s > incident.time_s:
            incident = last
    if incident is None:
        return "nothing has gone wrong so far"
    scene.log.filter = ""
    scene.screen, scene.zoomed, scene.focus = EVENTS, False, "incident"
    for index, entry in enumerate(entries(scene)):
        if entry.identity == incident.identity:
            select(scene, index)
            scene.log.anchor = entry.identity
            break
    return None


def stand_on_hold(scene: Scene) -> None:
    """When the training is held, open what it is held for: once, and never against the person.

    Whoever leaves the incident while it is held wants to look elsewhere: later holds are told by
    the line above the panels alone.
    """
    desk, frame = scene.log, scene.frame
    if frame.state != HELD:
        desk.is_standing = False
        return
    if desk.is_standing or desk.stays_away:
        if desk.is_standing and scene.screen != EVENTS:
            desk.stays_away = True
        return
    if headline(scene) is not None:
        desk.is_standing = True
        open_newest(scene)
