"""What the keys that reach into the training ask for: a command, a question first, or a refusal.

Pure: a scene and an action in, an intent out. Sending is the app's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from tuimon.model.commands import (
    AnyCommand,
    ArmHold,
    ClearBreakpoint,
    DisarmHold,
    Dump,
    Inspect,
    Pause,
    ReleaseLr,
    Resume,
    RollBack,
    RunAutopsy,
    SaveCheckpoint,
    ScaleLr,
    SetBreakpoint,
    SetClip,
    SetMaxNorm,
    SkipUpdate,
    StepOnce,
    Stop,
    Undo,
)
from tuimon.model.records import CLIP_OFF, CLIP_ON, CLIP_USER
from tuimon.model.text import plain
from tuimon.model.units import number, size_bytes
from tuimon.tui.draw.tree import TreeRow
from tuimon.tui.panels.detail import bytes_of
from tuimon.tui.scene import RUNS, Scene
from tuimon.view.arming import is_armed
from tuimon.view.frame import (
    CUT_OFF,
    GONE,
    HELD,
    LOADING,
    OTHER_VERSION,
    PAUSED,
    RECONNECTING,
    UNWATCHED,
    WAITING,
)

LEASE_S = 30.0  # a hold that was armed from here ends so long after the last viewer has gone
_LISTED = 5  # breakpoints that the dialog shows
_DEFAULT_MAX_NORM = 1.0  # the usual bound of clip_grad_norm_ in published training scripts
_UNREACHABLE = {
    WAITING: "no run yet: nothing to send to",
    LOADING: "the run is still being read",
    GONE: "the training has ended: nothing was sent",
    CUT_OFF: "the run folder was deleted: nothing gets there",
    UNWATCHED: "tuimon has switched its watch off there: nothing gets to the training",
    RECONNECTING: "not connected: nothing was sent",
    OTHER_VERSION: "the run speaks another format: nothing was sent",
}


class Question(msgspec.Struct, frozen=True):
    """What a dialog asks before anything is sent.

    Attributes:
        title, lines: what will happen; a line is (word, value).
        label: what to type; "" asks for yes or no only.
        default: what the line holds at first.
        answer: turns what was typed into a command, or into the reason why it cannot.
        is_number: nothing goes into the line that a number cannot begin with.
    """

    title: str
    lines: tuple[tuple[str, str], ...]
    answer: Callable[[str], AnyCommand | str]
    label: str = ""
    default: str = ""
    is_number: bool = False


Intent = AnyCommand | Question | str


def intent(action: str, scene: Scene, *, dump_folder: str) -> Intent:
    """What an action means in this scene. A string says why nothing happens."""
    if scene.screen == RUNS:
        return "enter shows a run first: then its keys reach it"
    refusal = _UNREACHABLE.get(scene.frame.state)
    if refusal is not None:
        return refusal
    match action:
        case "pause":
            return Resume() if scene.frame.state in (PAUSED, HELD) else Pause()
        case "step":
            if scene.frame.state not in (PAUSED, HELD):
                return "one step at a time only while paused: space pauses"
            return StepOnce()
        case "clip":
            return _clip(scene)
        case "halve":
            return _scaled(scene, 0.5)
        case "double":
            return _scaled(scene, 2.0)
        case "lr_halve":
            return ScaleLr(0.5)
        case "lr_double":
            return ScaleLr(2.0)
        case "lr_release":
            return ReleaseLr()
        case "undo":
            return Undo()
        case "inspect":
            return _inspect(scene)
        case "breakpoint":
            return _breakpoint(scene)
        case "dump":
            return _dump(scene, dump_folder)
        case "checkpoint":
            return _checkpoint(dump_folder)
        case "hold":
            return DisarmHold() if is_armed(scene.frame) else ArmHold(LEASE_S)
        case "autopsy":
            return RunAutopsy()
        case "skip":
            return _skip(scene)
        case "rollback":
            return _roll_back(scene)
        case "stop":
            return _stop(scene)
    return f"{action} is not a training key"


def _stop(scene: Scene) -> Intent:
    return Question(
        "stop the training",
        (
            ("run", f"{scene.frame.name}  pid {scene.frame.pid}"),
            ("how", "at the next boundary, as by ctrl+c: KeyboardInterrupt"),
            ("undo", "none"),
        ),
        lambda _: Stop(),
    )


def _skip(scene: Scene) -> Intent:
    state = scene.frame.state
    paused = state == PAUSED and scene.frame.hold_left_s is None
    held = state == HELD or (state == PAUSED and not paused)  # a breakpoint holds as well
    # A training that goes on is further by the time of the answer.
    step = scene.frame.step if paused else None
    next_step = "the update that comes next" if step is None else f"update {step + 1:,}"
    return Question(
        "skip an update",
        (
            ("leaves out", "the update that is held" if held else next_step),
            ("keeps", "weights and optimizer state as they are"),
            ("after", "it stays paused" if paused else "the training goes on"),
        ),
        lambda _: SkipUpdate(),
    )


def _roll_back(scene: Scene) -> Intent:
    state = scene.frame.snapshots
    if state is None:
        return "nothing to go back to: no snapshots are taken, start with --snapshot-every N"
    if state.step is None:
        why = plain(state.unable, 100) or "no healthy snapshot has been taken yet"
        return f"nothing to go back to: {why}"

    def answer(typed: str) -> AnyCommand | str:
        try:
            factor = float(typed)
        except ValueError:
            return f"{typed[:20]!r} is not a number"
        command = RollBack(None if factor == 1.0 else factor)
        return command.problem() or command

    return Question(
        "roll back",
        (
            (
                "to",
                f"after update {state.step:,}: weights, buffers, optimizer state, loss scale",
            ),
            ("leaves out", "the update that comes next"),
            ("goes on", "schedule, random numbers and data, as they are now"),
            ("undo", "none"),
        ),
        answer,
        label="learning rate ×",
        default="1",
        is_number=True,
    )


def _clip(scene: Scene) -> Intent:
    """On → off → as the script wrote it: no training loses its clipping by the first press."""
    clip = scene.frame.clip
    if clip.mode == CLIP_ON:
        return SetClip(CLIP_OFF)
    if clip.mode == CLIP_OFF:
        return SetClip(CLIP_USER)
    if scene.max_norm_known:
        return SetClip(CLIP_ON)
    series = scene.frame.series.get("grad_norm")
    now = series.last if series is not None else None
    usual = series.ema if series is not None else None
    words = f"the script's own clipping, max_norm {number(clip.max_norm)}"
    own = [] if clip.max_norm is None else [("instead of", words)]
    return Question(
        "clip gradients",
        (
            ("now", f"gradient norm {number(now)}, usual {number(usual)}"),
            *own,
            ("does", "the same as torch.nn.utils.clip_grad_norm_, from the next update on"),
            ("undo", "u; c again: off, then as the script wrote it"),
        ),
        lambda typed: _clip_answer(typed),
        label="max_norm",
        default=number(clip.max_norm or _DEFAULT_MAX_NORM).replace(",", ""),
        is_number=True,
    )


def _clip_answer(typed: str) -> AnyCommand | str:
    try:
        value = float(typed)
    except ValueError:
        return f"{typed[:20]!r} is not a number"
    command = SetClip(CLIP_ON, value)
    return command.problem() or command


def _scaled(scene: Scene, factor: float) -> Intent:
    clip = scene.frame.clip
    bound = scene.asked_max_norm or clip.max_norm
    if clip.mode != CLIP_ON or bound is None:
        return "tuimon does not clip now: c switches clipping on"
    value = bound * factor
    if not (math.isfinite(value) and value > 0):
        return f"max_norm cannot become {value}"
    return SetMaxNorm(value)


def _checkpoint(folder: str) -> Intent:
    def answer(typed: str) -> AnyCommand | str:
        command = SaveCheckpoint(typed.strip())
        return command.problem() or command

    return Question(
        "save a checkpoint",
        (
            ("writes", "models, optimizers, loss scale and random streams, before the next update"),
            ("loads", "by torch.load(…, weights_only=True)"),
            ("into", "a file named by the step, in the folder below"),
        ),
        answer,
        label="folder",
        default=folder,
    )


def _inspect(scene: Scene) -> Intent:
    row = _selected(scene)
    if row is None:
        return "no layer is known yet: 3 shows the layers"
    if scene.frame.state not in (PAUSED, HELD):
        return "a layer is looked at while the training waits: space pauses"
    return Inspect(row.path)


_EXAMPLES = (
    "grad_norm > 1e3 and step > 100",
    'nan in "blocks.3.*"    inf in loss    lr < 1e-5',
    'output "encoder.4" absmax > 1e4',
)


def _breakpoint(scene: Scene) -> Intent:
    def answer(typed: str) -> AnyCommand | str:
        first, _, rest = typed.strip().partition(" ")
        if first == "clear":
            rest = rest.strip()
            if not (rest == "all" or rest.isdecimal()):
                return "clear takes the number of a breakpoint, or all"
            command: AnyCommand = ClearBreakpoint(None if rest == "all" else int(rest[:9]))
        else:
            command = SetBreakpoint(typed)
        return command.problem() or command

    known = [
        (f"set {each.number}", f"{each.condition}   hits {each.hits:,}")
        for each in scene.frame.breakpoints[-_LISTED:]
    ]
    return Question(
        "breakpoint",
        (
            ("holds", "the training before the update at which this becomes true"),
            *(("such as" if not at else "", words) for at, words in enumerate(_EXAMPLES)),
            ("and", "grad, weight, update, output; not, or, ( ): `tuimon ctl --help` lists all"),
            *known,
            *([("clear", "clear 2, or clear all")] if known else []),
        ),
        answer,
        label="condition",
    )


def _selected(scene: Scene) -> TreeRow | None:
    rows = scene.heat.tree.rows() if scene.frame.layers is not None else []
    return rows[max(0, min(scene.heat.cursor, len(rows) - 1))] if rows else None


def _dump(scene: Scene, folder: str) -> Intent:
    table, row = scene.frame.layers, _selected(scene)
    if table is None or row is None:
        return "no layer is known yet"
    names = [table.names[index] for index in row.members if index < len(table.names)]
    size = bytes_of(table, row.members)
    shown = names[0] if len(names) == 1 else f"{row.path}  ({len(names):,} parameters)"

    def answer(typed: str) -> AnyCommand | str:
        command = Dump(names, typed.strip())
        return command.problem() or command

    return Question(
        "dump tensors",
        (
            ("layer", shown),
            ("writes", "parameter and gradient as safetensors, statistics as JSON"),
            ("into", "a folder of the step, in the folder below"),
            ("size", "unknown" if size is None else f"about {size_bytes(2 * size)}"),
        ),
        answer,
        label="folder",
        default=folder,
    )
