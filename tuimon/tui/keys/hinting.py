"""What a footer names: the keys that matter in a scene, the most important ones first."""

from __future__ import annotations

from tuimon.tui.keys.actions import UNREACHABLE, Action, actions, kind_of
from tuimon.tui.scene import CHARTS, LAYER, LAYERS, LOOK, OUTPUT, RANKS, RUNS, Scene
from tuimon.view.frame import HELD, PAUSED

Hint = tuple[str, str]  # key and word

_SCREENS = ("1-9", "view")
_PANEL = ("tab", "panel")
_STATE = ("pause", "play", "step", "play_step")
_LAST = ("help", "quit")
_ONE_PANEL = (LAYERS, LOOK, OUTPUT, RANKS, RUNS)  # that takes keys
# Of one panel: there is seldom room for everything.
_FIRST_SHOWN = (
    "open",
    "right",
    "left",
    "sort",
    "filter",
    "go",
    "spike",
    "rank",
    "copy",
    "next_bad",
    "cross_left",
    "down",
)


def hints(scene: Scene) -> tuple[Hint, ...]:
    """(key, word) pairs of the footer; help and quit come last and always stay."""
    silent = scene.readonly or scene.frame.state in UNREACHABLE or scene.screen == RUNS
    kind = kind_of(scene.focus)
    state: list[Hint] = []
    here: list[tuple[int, Hint]] = []
    everywhere: list[Hint] = []
    for action in actions(readonly=silent, replays=scene.replays):
        if not action.word or action.id in _LAST or not _is_of_use(scene, action):
            continue
        hint = (action.shown or action.keys[0], _word(scene, action))
        if action.id in _STATE:
            state.append(hint)
        elif kind in action.panels:
            here.append((_place(action.id), hint))
        elif not action.panels and action.id != "next_panel":
            everywhere.append(hint)
    if scene.frame.replay is not None:
        state.append(("< >", scene.frame.replay.speed_words))
    own = [hint for _, hint in sorted(here, key=lambda entry: entry[0])]
    if scene.screen == LAYER:
        own = [("esc", "back"), ("j k", "layer"), *own]
    alone = scene.screen in _ONE_PANEL or (scene.zoomed and scene.screen != CHARTS)
    panel = () if alone else (_PANEL,)
    first = (*state, _SCREENS, *own[:1], *panel, *own[1:2])
    return (*first, *everywhere, *own[2:], ("?", "help"), ("q", "quit"))


def _is_of_use(scene: Scene, action: Action) -> bool:
    """Whether the key does something here and in the state that the training is in."""
    state = scene.frame.state
    if action.id == "zoom":
        return scene.screen == LAYERS or scene.screen not in _ONE_PANEL
    if action.id == "step":
        return state == PAUSED
    if action.id == "inspect":
        return state in (PAUSED, HELD)
    # Held: the line above the panels asks for an answer.
    return action.id != "pause" or state != HELD


def _word(scene: Scene, action: Action) -> str:
    replay = scene.frame.replay
    if action.id == "pause" and scene.frame.state == PAUSED:
        return "resume"
    if action.id == "zoom" and scene.zoomed:
        return "back"
    if action.id == "play" and replay is not None and replay.playing:
        return "pause"
    return action.word


def _place(name: str) -> int:
    return _FIRST_SHOWN.index(name) if name in _FIRST_SHOWN else len(_FIRST_SHOWN)
