"""The lines above and below the picture: header, the line of an incident or a state, footer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment

from tuimon.model.records import WATCH_OFF
from tuimon.model.units import DASH, count, duration_s, number
from tuimon.tui.draw.axis import short
from tuimon.tui.draw.marking import at_cross
from tuimon.tui.draw.rows import Row, data, fit, shortened, spread, text, width_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.event_log import headline
from tuimon.tui.scene import Scene
from tuimon.view.arming import is_armed, passes_now
from tuimon.view.frame import (
    CUT_OFF,
    GONE,
    HELD,
    LATE,
    LIVE,
    LOADING,
    OTHER_VERSION,
    PAUSED,
    RECONNECTING,
    SILENT,
    UNWATCHED,
    WAITING,
    Frame,
)
from tuimon.view.incidents import Incident
from tuimon.view.waits import waited

_BAR_CELLS = 10
_AROUND_WORDS = 4  # cells of a line beside its words
_MAX_LINES = 3
# The states, and the kinds of the events that say the same.
_SAYS_THE_STATE = ((GONE, "killed"), (UNWATCHED, WATCH_OFF))
WORDY_COLUMNS = 70
_MUST_CELLS = 17  # of a footer: its margin, a gap, help and quit
_LOOK_HINTS = ("v look  esc hide", "v look")

# What a state means and what to do, where the reader of the run has not said it better.
_SENTENCES = {
    WAITING: "no run yet: `tuimon run script.py` starts one; it appears here by itself",
    LOADING: "reading the history of the run",
    LATE: "the next step is overdue: a long evaluation, a checkpoint, or trouble",
    SILENT: "the process lives but makes no steps: evaluation, data, or a deadlock",
    PAUSED: "the training waits before an update: space resumes, . makes one step",
    HELD: "held at a non-finite step: space goes on",
    GONE: "the training has ended: everything stays readable, q quits",
    CUT_OFF: "nothing that is sent gets there any more: the training goes on by itself",
    UNWATCHED: "tuimon switched its watch off there: the training goes on unseen",
    RECONNECTING: "connection lost: trying again, the picture is the last one",
    OTHER_VERSION: "the run speaks another format: attach with the version that started it",
}
# What a hold waits for; the words of these keys in the table of all keys say the same longer.
HOLD_KEYS = (
    ("space", "resume"),
    (".", "one step"),
    ("x", "skip it"),
    ("!", "disarm"),
    ("v", "look"),
)
_COLOURS = {
    LIVE: "ok",
    WAITING: "warn",
    LOADING: "warn",
    LATE: "warn",
    SILENT: "warn",
    PAUSED: "warn",
    HELD: "bad",
    RECONNECTING: "warn",
    CUT_OFF: "bad",
    UNWATCHED: "bad",
    OTHER_VERSION: "bad",
}


def state_badge(look: Look, frame: Frame, price_per_hour: float | None = None) -> Row:
    """The state at the right end of the header: a glyph and a word, never colour alone."""
    glyphs = look.glyphs
    if frame.state == GONE:
        return _exit_badge(look, frame)
    marks = {LIVE: glyphs.live, PAUSED: glyphs.paused, HELD: glyphs.paused}
    marks |= {WAITING: glyphs.hollow, LOADING: glyphs.hollow, RECONNECTING: glyphs.again}
    mark = marks.get(frame.state, glyphs.warning)
    colour = _COLOURS.get(frame.state, "warn")
    words = f"{mark} {frame.state.upper()}"
    if frame.state in (LATE, SILENT, RECONNECTING) and frame.silent_for_s is not None:
        words += f" {duration_s(float(int(frame.silent_for_s)))}"
    if told := waited(frame.waits_for_s, price_per_hour):
        words += f" {told}"
    if frame.state == LIVE:
        return [text(look, words, colour, bold=True)]
    return [text(look, f" {words} ", "on_level", colour, bold=True)]


def _exit_badge(look: Look, frame: Frame) -> Row:
    ended = frame.exit
    if ended is None:
        return [text(look, f" {look.glyphs.critical} GONE ", "on_badge", "nan", bold=True)]
    if ended.kind == "ok":
        if ended.not_finite:
            return [text(look, f" {look.glyphs.critical} DONE ", "on_badge", "nan", bold=True)]
        return [text(look, f" {look.glyphs.live} DONE ", "on_level", "ok", bold=True)]
    if ended.kind == "stopped":
        return [text(look, f" {look.glyphs.hollow} STOPPED ", "on_level", "warn", bold=True)]
    word = "KILLED" if ended.kind == "killed" else "EXITED"
    code = "" if ended.code is None else f" {ended.code}"
    return [text(look, f" {look.glyphs.critical} {word}{code} ", "on_badge", "nan", bold=True)]


class HeaderPanel:
    """Name, rank, host and pid, place in the data, ETA, rate, progress, step, state."""

    name = "header"
    can_focus = False
    rest_s = 0.0

    def key(self, scene: Scene) -> object:
        """Changes with every figure of the line."""
        frame = scene.frame
        rate = None if frame.steps_per_s is None else number(frame.steps_per_s, 3)
        silent = None if frame.silent_for_s is None else int(frame.silent_for_s)
        names = (frame.name, frame.host, frame.pid, frame.rank, frame.world_size)
        figures = (frame.step, frame.total_steps, rate, _eta(frame), _epoch(frame), frame.exit)
        armed = is_armed(frame) and (1 + passes_now(frame))
        marks = (scene.frozen, scene.readonly, armed, replay_words(frame, scene.look))
        waits = None if frame.waits_for_s is None else int(frame.waits_for_s)
        return (frame.state, silent, waits, marks, names, figures)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """One row."""
        look, frame = scene.look, scene.frame
        left: list[Row] = [[text(look, " tuimon", "key", bold=True)]]
        if frame.name:
            left.append([data(look, frame.name[:40], "strong", bold=True)])
        if frame.world_size > 1:
            words = f"{frame.rank}/{frame.world_size}"
            left.append([text(look, "rank ", "dim"), text(look, words)])
        if frame.host:
            left.append([data(look, f"{frame.host[:24]}:{frame.pid}", "dim")])
        right: list[Row] = []
        if frame.data is not None:
            right += [[text(look, words, "dim")] for words in _epoch(frame)]
        if frame.eta_s is not None:
            right.append([text(look, f"ETA {_eta(frame)}", "dim")])
        if frame.steps_per_s is not None and frame.state in (LIVE, LATE):
            right.append([text(look, f"{number(frame.steps_per_s, 3)} it/s")])
        right += _progress(look, frame)
        if is_armed(frame) and frame.state not in (HELD, GONE, UNWATCHED):
            words = "HOLD ARMS WHEN FINITE" if passes_now(frame) else "HOLD ARMED"
            right.append([text(look, words, "warn", bold=True)])
        if words := replay_words(frame, scene.look):
            right.append([text(look, words, "key", bold=True)])
        elif scene.readonly:
            right.append([text(look, "READ-ONLY", "key", bold=True)])
        if scene.frozen:
            right.append([text(look, " VIEW FROZEN ", "on_level", "key", bold=True)])
        if frame.replay is None or frame.state != LIVE:
            right.append(state_badge(look, frame, scene.price_per_hour))
        right[-1] = [*right[-1], text(look, " ")]
        return [spread(look, left, right, width)]


def replay_words(frame: Frame, look: Look) -> str:
    """That a recording is shown, whether it plays, and how fast; "live" where it follows a run."""
    replay = frame.replay
    if replay is None:
        return ""
    mark = look.glyphs.live if replay.playing else look.glyphs.paused
    return f"REPLAY {mark} {'live' if replay.follows else replay.speed_words}"


def _eta(frame: Frame) -> str:
    if frame.eta_s is None or frame.state not in (LIVE, LATE):
        return DASH
    return duration_s(max(1.0, float(int(frame.eta_s))))


def _epoch(frame: Frame) -> tuple[str, ...]:
    """ "epoch ends in 40 s", "epoch 2 batch 120/500": counted from 0 as steps are."""
    data = frame.data
    if data is None:
        return ()
    words = "" if data.epoch is None else f"epoch {count(data.epoch)} "
    words += f"batch {count(data.batch)}"
    if data.batches_per_epoch is not None:
        words += f"/{short(data.batches_per_epoch)}"
    if data.eta_s is None or frame.state not in (LIVE, LATE):
        return (words,)
    return f"epoch ends in {duration_s(max(1.0, float(int(data.eta_s))))}", words


def _progress(look: Look, frame: Frame) -> list[Row]:
    step = [text(look, "step ", "dim"), text(look, count(frame.step), "strong", bold=True)]
    if not frame.total_steps or frame.step is None:
        return [step]
    share = min(1.0, (frame.step + 1) / frame.total_steps)
    full = round(_BAR_CELLS * share)
    bar = [
        text(look, look.glyphs.bar * full, "key"),
        text(look, look.glyphs.rail * (_BAR_CELLS - full), "faint"),
        text(look, f" {share * 100:.0f}%", "dim"),
    ]
    step.append(text(look, f"/{short(frame.total_steps)}", "dim"))
    return [bar, step]


def visible_alert(scene: Scene) -> Incident | None:
    """The newest incident, unless its line has been hidden."""
    found = headline(scene)
    return None if found is None or found.identity == scene.alert_hidden else found


def alert_rows(scene: Scene, width: int) -> int:
    """Rows above the panels: none when all is well, two for a hold, more for words that are long.

    The end of what a state means says what to do, so that it must not be cut.
    """
    frame = scene.frame
    if frame.state == HELD:
        return 2
    if frame.state not in (LIVE, LATE):
        return len(state_lines(scene, width))
    return int(visible_alert(scene) is not None or frame.state != LIVE or bool(frame.state_detail))


def state_words(scene: Scene) -> str:
    """What the state means and what to do about it; the incident before it comes last."""
    frame, alert = scene.frame, visible_alert(scene)
    words = frame.state_detail or _SENTENCES.get(frame.state, "")
    if frame.state == GONE and frame.exit is not None and not frame.state_detail:
        words = f"{frame.exit.kind}: {frame.exit.detail or words}"
    if frame.crash is not None and alert is not None and alert.crash is frame.crash:
        words, alert = _told(alert), None
    if alert is not None and (frame.state, alert.kind) in _SAYS_THE_STATE:
        alert = None
    if alert is not None:
        words += f"   before: {alert.text}"
    return words


def state_lines(scene: Scene, width: int) -> list[str]:
    """What the state means, in lines that fit: as many as it takes, within reason."""
    lines: list[str] = []
    rest = state_words(scene)
    room = width - _AROUND_WORDS
    while cell_len(rest) > room and len(lines) < _MAX_LINES - 1:
        head = set_cell_size(rest, room)
        place = head.rfind(" ")
        place = place if place > room // 2 else len(head)
        lines.append(rest[:place].rstrip())
        rest = rest[place:].strip()
    return [*lines, rest]


class AlertPanel:
    """The newest incident, or what the state means and what to do; keys while the run is held."""

    name = "alert"
    can_focus = False
    rest_s = 0.0

    def key(self, scene: Scene) -> object:
        """Changes with the incident, the state and its sentence."""
        frame = scene.frame
        silent = None if frame.silent_for_s is None else int(frame.silent_for_s)
        words = frame.state_detail if not silent else ""  # a wait is told by the second
        left = None if frame.hold_left_s is None else int(frame.hold_left_s)
        return (visible_alert(scene), frame.state, words, silent, left, frame.exit)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """One row, two while the run is held."""
        look, frame = scene.look, scene.frame
        alert = visible_alert(scene)
        if frame.state == HELD:
            alert = headline(scene)
            words = frame.state_detail or _SENTENCES[HELD]
            if alert is not None:
                told = (alert.detail or alert.text).partition("  `")[0]  # without the source
                words = _told(alert) if alert.event is None else told
            first = self._bad(look, words, width, _hold_hints(frame))
            return [first, _hold_keys(scene, width)]
        if alert is not None and frame.state in (LIVE, LATE):
            return [self._bad(look, _told(alert), width, _LOOK_HINTS)]
        lines = state_lines(scene, width)[:height]
        bad = frame.state in (OTHER_VERSION, CUT_OFF, UNWATCHED) or (
            frame.state == GONE and (frame.exit is None or frame.exit.kind not in ("ok", "stopped"))
        )
        hints = _LOOK_HINTS[1:] if bad and headline(scene) else ()
        if bad:
            last = len(lines) - 1
            return [
                self._bad(look, line, width, hints if at == last else (), continues=at > 0)
                for at, line in enumerate(lines)
            ]
        style = look.style("warn")
        rows = []
        for at, line in enumerate(lines):
            mark = f" {look.glyphs.info} " if at == 0 else "   "
            tail = [] if at else self._left(look, frame)
            room = width - width_of(tail)
            words = shortened(look, mark + data(look, line).text, room)
            rows.append([*fit(look, [Segment(words, style)], room, pad=style), *tail])
        return rows

    def _left(self, look: Look, frame: Frame) -> Row:
        """When a pause ends by itself."""
        hints = _hold_hints(frame) if frame.state == PAUSED else ()
        return [text(look, f"  {hints[0]} ", "warn")] if hints else []

    def _bad(
        self, look: Look, words: str, width: int, hints: tuple[str, ...], *, continues: bool = False
    ) -> Row:
        """A red line; then the first hint that leaves the words whole, or the last."""
        style = look.style("on_badge", "nan", bold=True)
        mark = " " if continues else look.glyphs.critical
        words = f" {mark} {data(look, words).text}"
        for hint in hints:
            right = [Segment(f"  {hint} ", style)]
            room = width - width_of(right)
            if cell_len(words) <= room or hint == hints[-1]:
                left = [Segment(shortened(look, words, room), style)]
                return [*fit(look, left, room, pad=style), *right]
        return fit(look, [Segment(shortened(look, words, width), style)], width, pad=style)


def _told(incident: Incident) -> str:
    """An incident in one line."""
    where = "" if incident.step is None else f"step {incident.step:,}: "
    detail = (incident.detail.splitlines() or [""])[0]  # the rest is on the screen of incidents
    return f"{where}{incident.text}  {detail}".rstrip()


def _hold_hints(frame: Frame) -> tuple[str, ...]:
    """How long there is to decide."""
    if frame.hold_left_s is None:
        return ()
    left = duration_s(float(max(0, int(frame.hold_left_s))))
    return f"goes on by itself in {left}", f"{left} left"


def _hold_keys(scene: Scene, width: int) -> Row:
    """What can be done about a hold."""
    look = scene.look
    words = "held " if width >= WORDY_COLUMNS else ""
    row: Row = [text(look, f" {look.glyphs.paused} {words}", "bad", bold=True)]
    for key, word in HOLD_KEYS if not scene.readonly else HOLD_KEYS[-1:]:
        row += [text(look, f" {key}", "key", bold=True), text(look, f" {word} ", "text")]
    return fit(look, row, width)


class FooterPanel:
    """The life of the newest command, then the keys that matter here."""

    name = "footer"
    can_focus = False
    rest_s = 0.0

    def key(self, scene: Scene) -> object:
        """Changes with the notice and the keys."""
        return (scene.notice, scene.hint, at_cross(scene))

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """One row; help and quit always stay."""
        look = scene.look
        words, colour = scene.notice
        if not words and (found := at_cross(scene)):
            words, colour = f"{look.glyphs.mark} {found}", "warn"
        row: Row = [text(look, " ")]
        if words:
            words = shortened(look, data(look, words).text, width - _MUST_CELLS)
            row += [text(look, words, colour, bold=True), text(look, "  ")]
        for at, (key, word) in enumerate(_that_fit(scene.hint, width - width_of(row))):
            row.append(text(look, "  " if at else ""))
            row += [text(look, key, "key", bold=True), text(look, f" {word}", "dim")]
        return [fit(look, row, width)]


def _that_fit(hints: Sequence[tuple[str, str]], room: int) -> list[tuple[str, str]]:
    """The hints that fit in whole; the last two always."""
    sizes = [len(key) + len(word) + 3 for key, word in hints]
    room -= sum(sizes[-2:]) - 2  # none after the last
    shown = []
    for hint, size in zip(hints[:-2], sizes, strict=False):
        if size <= room:
            room -= size
            shown.append(hint)
    return [*shown, *hints[-2:]]


def clock(unix_s: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
