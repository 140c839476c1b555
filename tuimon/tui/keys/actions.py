"""The one table of keys. It drives dispatch, footer, in-app help and the README's key table."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tuimon.tui.scene import (
    AMP,
    CHARTS,
    DATA,
    EVENTS,
    LAYERS,
    OUTPUT,
    RANKS,
    RUNS,
    SYSTEM,
)
from tuimon.tui.screens import CHART_PREFIX
from tuimon.view.frame import (
    CUT_OFF,
    GONE,
    LOADING,
    OTHER_VERSION,
    RECONNECTING,
    UNWATCHED,
    WAITING,
)

VIEWS = "views"
TIME = "charts"
ROWS = "lists"
TRAINING = "training"
REPLAY = "replay of a recording"
GROUPS = (VIEWS, TIME, ROWS, TRAINING, REPLAY)

# States in which nothing can be sent, so that no footer offers it.
UNREACHABLE = frozenset({WAITING, LOADING, GONE, CUT_OFF, UNWATCHED, RECONNECTING, OTHER_VERSION})

# Kinds of panels a key can be meant for.
ON_CHART = "chart"
ON_LAYERS = "layers"
ON_EVENTS = "events"
ON_INCIDENT = "incident"
ON_SKIPS = "skips"
ON_LOOK = "look"
ON_RANKS = "ranks"
ON_BATCHES = "batches"
ON_BATCH = "batch"
ON_OUTPUT = "output"
ON_DEVICES = "devices"
ON_RUNS = "runs"
ON_ACCOUNT = "account"
ON_HOST = ("split", "host", "cost")
ON_LEDGER = "ledger"
# What j, k and the wheel move in.
LISTS = (
    ON_LAYERS,
    ON_EVENTS,
    ON_INCIDENT,
    ON_SKIPS,
    ON_LOOK,
    ON_RANKS,
    ON_BATCHES,
    ON_BATCH,
    ON_OUTPUT,
    ON_DEVICES,
    ON_RUNS,
    ON_ACCOUNT,
    *ON_HOST,
    ON_LEDGER,
)


class Action(msgspec.Struct, frozen=True):
    """One thing a key does.

    Attributes:
        id: what is dispatched.
        keys: as a person presses them; the first is shown.
        description: for help and the README.
        group: heading in help.
        word: for the footer; "" when it is not shown there.
        panels: kinds of focused panels whose footer shows it; empty is everywhere.
        needs_training: reaches into the training; absent in a read-only viewer.
        asks_first: opens a dialog before anything is sent.
        shown: keys as a footer shows them, where one word stands for two actions.
    """

    id: str
    keys: tuple[str, ...]
    description: str
    group: str
    word: str = ""
    panels: tuple[str, ...] = ()
    needs_training: bool = False
    asks_first: bool = False
    shown: str = ""


ACTIONS = (
    Action("pause", ("space", "p"), "pause, resume", TRAINING, "pause", needs_training=True),
    Action("step", (".",), "one step while paused", TRAINING, "step", needs_training=True),
    Action(
        "clip",
        ("c",),
        "clipping: on → off → the script's own",
        TRAINING,
        "clip",
        needs_training=True,
    ),
    Action("halve", ("[",), "max_norm ÷ 2", TRAINING, needs_training=True),
    Action("double", ("]",), "max_norm × 2", TRAINING, needs_training=True),
    Action("lr_halve", ("<",), "learning rate ÷ 2", TRAINING, needs_training=True),
    Action("lr_double", (">",), "learning rate × 2", TRAINING, needs_training=True),
    Action("lr_release", ("=",), "learning rate of the script", TRAINING, needs_training=True),
    Action("undo", ("u",), "undo the newest change of clip or rate", TRAINING, needs_training=True),
    Action(
        "inspect",
        ("i",),
        "inspect the selected layer, paused or held",
        TRAINING,
        "inspect",
        (ON_LAYERS,),
        needs_training=True,
    ),
    Action(
        "breakpoint",
        ("B",),
        "breakpoint: set, clear",
        TRAINING,
        needs_training=True,
        asks_first=True,
    ),
    Action(
        "dump",
        ("d",),
        "dump the selected layer",
        TRAINING,
        "dump",
        (ON_LAYERS,),
        needs_training=True,
        asks_first=True,
    ),
    Action(
        "checkpoint",
        ("s",),
        "save a checkpoint",
        TRAINING,
        needs_training=True,
        asks_first=True,
    ),
    Action(
        "hold",
        ("!",),
        "hold before a NaN or Inf update: arm, disarm",
        TRAINING,
        needs_training=True,
    ),
    Action("autopsy", ("A",), "autopsy of the next step", TRAINING, needs_training=True),
    Action("skip", ("x",), "skip the next update", TRAINING, needs_training=True, asks_first=True),
    Action(
        "rollback",
        ("R",),
        "roll back to the last healthy snapshot",
        TRAINING,
        needs_training=True,
        asks_first=True,
    ),
    Action("stop", ("Q",), "stop the training", TRAINING, needs_training=True, asks_first=True),
    Action("overview", ("1",), "overview", VIEWS),
    Action("charts", ("2",), "charts of all series", VIEWS),
    Action("layers", ("3",), "layers: heat map, detail", VIEWS),
    Action("system", ("4",), "devices, host, step time", VIEWS),
    Action("events", ("5",), "events and incidents", VIEWS),
    Action("amp", ("6",), "AMP ledger: scale and skips", VIEWS),
    Action("data", ("7",), "data: batches looked at", VIEWS),
    Action("ranks", ("8",), "ranks of the training", VIEWS),
    Action("output", ("9",), "output of the training", VIEWS),
    Action("rank", ("r",), "show the selected rank, or the next one", VIEWS, "show", (ON_RANKS,)),
    Action("runs", ("W",), "runs of this host: pick one", VIEWS),
    Action("look", ("v",), "look at the newest incident", VIEWS),
    Action("copy", ("Y",), "copy the incident (OSC 52)", VIEWS, "copy", (ON_EVENTS, ON_INCIDENT)),
    Action(
        "write",
        ("w",),
        "write the incident to a file",
        VIEWS,
        "write",
        (ON_EVENTS, ON_INCIDENT),
    ),
    Action("picture", ("P",), "the screen as an SVG file", VIEWS),
    Action("next_panel", ("tab",), "next panel", VIEWS, "panel"),
    Action("previous_panel", ("shift+tab",), "previous panel", VIEWS),
    Action("zoom", ("z",), "zoom the panel", VIEWS, "zoom"),
    Action("back", ("esc",), "back: zoom, filter, crosshair, incident", VIEWS),
    Action("narrower", ("(",), "panel narrower", VIEWS),
    Action("broader", (")",), "panel wider", VIEWS),
    Action("shorter", ("{",), "panel shorter", VIEWS),
    Action("taller", ("}",), "panel taller", VIEWS),
    Action("as_laid_out", ("|",), "panels as they were laid out", VIEWS),
    Action("freeze", ("f",), "freeze the picture", VIEWS),
    Action("glyphs", ("a",), "glyphs: braille, block, ascii", VIEWS),
    Action("theme", ("t",), "theme: dark, light, contrast, colour-blind", VIEWS),
    Action(
        "left",
        ("h", "←"),
        "crosshair left; in layers: fold",
        TIME,
        "cross",
        (ON_CHART,),
        shown="h l",
    ),
    Action(
        "right",
        ("l", "→"),
        "crosshair right; in layers: unfold",
        TIME,
        "fold",
        (ON_LAYERS,),
        shown="h l",
    ),
    Action("closer", ("+",), "zoom in", TIME, "time", (ON_CHART, ON_LAYERS), shown="+ -"),
    Action("wider", ("-",), "zoom out", TIME),
    Action("whole", ("0",), "whole history and follow", TIME, "all", (ON_CHART, ON_LAYERS)),
    Action("earlier", ("H",), "back in time", TIME, "pan", (ON_CHART, ON_LAYERS), shown="H L"),
    Action("later", ("L",), "forward in time", TIME),
    Action("log", ("y",), "log or linear axis", TIME, "log", (ON_CHART,)),
    Action("smooth", ("e",), "smoothing: 0.9, 0.99, 0.999 of each step kept, off", TIME),
    Action("cap", ("o",), "cap outliers on or off", TIME),
    Action(
        "cross_left",
        (",",),
        "crosshair left everywhere",
        TIME,
        "cross",
        (ON_LAYERS,),
        shown=", ;",
    ),
    Action("cross_right", (";",), "crosshair right everywhere", TIME),
    Action("go", ("@",), "crosshair to a step: 1000, 1k, 50%, -100", TIME, "go to", (ON_CHART,)),
    Action("spike", ("M",), "crosshair to sharpest spike", TIME, "spike", (ON_CHART,)),
    Action("overlay", ("O",), "another run over the charts", TIME),
    Action("down", ("j", "↓"), "down", ROWS, "move", LISTS, shown="j k"),
    Action("up", ("k", "↑"), "up", ROWS),
    Action("top", ("g",), "to the first", ROWS),
    Action("bottom", ("G",), "to the last", ROWS),
    Action(
        "next_bad",
        ("n",),
        "next NaN, Inf or event",
        ROWS,
        "trouble",
        (ON_CHART, ON_LAYERS, ON_EVENTS, ON_BATCHES, ON_OUTPUT),
        shown="n N",
    ),
    Action("last_bad", ("N",), "last NaN, Inf or event", ROWS),
    Action(
        "filter",
        ("/",),
        "filter (regex), esc clears",
        ROWS,
        "filter",
        (ON_LAYERS, ON_EVENTS, ON_OUTPUT),
    ),
    Action("only_bad", ("b",), "only rows ever NaN or Inf", ROWS, "bad", (ON_LAYERS,)),
    Action("absolute", ("m",), "relative or absolute norms", ROWS, "abs", (ON_LAYERS,)),
    Action(
        "open",
        ("enter",),
        "open: layer over time, event, run",
        ROWS,
        "open",
        (ON_LAYERS, ON_EVENTS, ON_RUNS),
    ),
    Action(
        "sort",
        ("S",),
        "sort layers: modules, worst, first bad, norm, name",
        ROWS,
        "sort",
        (ON_LAYERS,),
    ),
    Action("palette", (":", "ctrl+p"), "every action by name", VIEWS),
    Action("help", ("?",), "help", VIEWS, "help"),
    Action("suspend", ("ctrl+z",), "suspend the viewer; fg brings it back", VIEWS),
    Action("quit", ("q",), "quit the viewer; the training goes on", VIEWS, "quit"),
)

# In place of the keys above that would reach a training or look for what is known so far only.
REPLAYING = (
    Action("play", ("space", "p"), "play, pause", REPLAY, "play"),
    Action("play_step", (".",), "one step, and stay there", REPLAY, "step"),
    Action("slower", ("<",), "speed ÷ 2", REPLAY),
    Action("faster", (">",), "speed × 2", REPLAY),
    Action("go_back", ("H",), "back by a twentieth of the run", REPLAY, "jump", shown="H L"),
    Action("go_on", ("L",), "forward by a twentieth of the run", REPLAY),
    Action(
        "next_event",
        ("n",),
        "to the next NaN, Inf or critical event",
        REPLAY,
        "event",
        shown="n N",
    ),
    Action("last_event", ("N",), "to the last one", REPLAY),
    Action("go_to", ("J",), "go to a step", REPLAY, "seek"),
)

_TEXTUAL = {
    "esc": "escape",
    ".": "full_stop",
    "!": "exclamation_mark",
    "<": "less_than_sign",
    ">": "greater_than_sign",
    "=": "equals_sign",
    "[": "left_square_bracket",
    "]": "right_square_bracket",
    "+": "plus",
    "-": "minus",
    "(": "left_parenthesis",
    ")": "right_parenthesis",
    "{": "left_curly_bracket",
    "}": "right_curly_bracket",
    "|": "vertical_line",
    "/": "slash",
    "?": "question_mark",
    ":": "colon",
    "@": "at",
    ",": "comma",
    ";": "semicolon",
    "←": "left",
    "→": "right",
    "↑": "up",
    "↓": "down",
}


def actions(*, readonly: bool, replays: bool = False) -> tuple[Action, ...]:
    """The actions a viewer has; a read-only one has none that reaches into the training."""
    if replays:
        taken = {key for action in REPLAYING for key in action.keys}
        kept = (each for each in ACTIONS if not each.needs_training and not taken & {*each.keys})
        return (*REPLAYING, *kept)
    return tuple(action for action in ACTIONS if not (readonly and action.needs_training))


def bindings(*, readonly: bool, replays: bool = False) -> Iterable[tuple[str, Action]]:
    """(key as Textual names it, action) for every key."""
    for action in actions(readonly=readonly, replays=replays):
        for key in action.keys:
            yield _TEXTUAL.get(key, key), action


def kind_of(panel: str) -> str:
    """The kind of a panel, for the footer and for keys that mean different things."""
    if panel in ("loss", "grad") or panel.startswith(CHART_PREFIX):
        return ON_CHART
    return panel


MOUSE = (
    ("click", "focus, select; in a chart the crosshair"),
    ("wheel", "move in lists, zoom in charts"),
    ("drag an edge", "resize panels"),
)


def keys_markdown() -> str:
    """The key table of the README."""
    lines = ["| key | does |", "|---|---|"]
    for group in GROUPS:
        lines.append(f"| **{group}** | |")
        for action in (*ACTIONS, *REPLAYING):
            if action.group == group:
                keys = " ".join(f"`{key}`" for key in action.keys)
                asks = ", after asking" if action.asks_first else ""
                lines.append(f"| {keys} | {action.description}{asks} |")
    lines.append("| **mouse** | |")
    lines += [f"| {what} | {words} |" for what, words in MOUSE]
    return "\n".join(lines) + "\n"


SCREENS = {
    "overview": "overview",
    "charts": CHARTS,
    "layers": LAYERS,
    "events": EVENTS,
    "amp": AMP,
    "ranks": RANKS,
    "system": SYSTEM,
    "data": DATA,
    "output": OUTPUT,
    "runs": RUNS,
}
