"""Choosing among the runs of this host: who lists them, and a fresh scene for the one chosen."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tuimon.errors import Refused
from tuimon.model.commands import AnyCommand
from tuimon.model.records import CommandState
from tuimon.model.text import plain
from tuimon.tui.bridge import RunSession
from tuimon.tui.scene import RUNS, Scene
from tuimon.view.frame import WAITING, Frame
from tuimon.view.runs import RunGlance

_OFFERED = 8  # other runs that a question names
_CHOOSE = "several runs live: j k choose one, enter shows it, q leaves"


class Choices(msgspec.Struct, frozen=True):
    """Where the list comes from, and how one of them is opened."""

    poll: Callable[[], tuple[RunGlance, ...]]
    open_run: Callable[[RunGlance], RunSession]


class NoSession:
    """Nothing is watched yet."""

    def tick(self) -> Frame:
        """A frame that says what to do."""
        return Frame(state=WAITING, state_detail=_CHOOSE)

    def send(self, command: AnyCommand) -> CommandState:
        """Nobody takes it."""
        raise Refused("no run is chosen: nothing was sent")

    def look_at(self, rank: int) -> None:
        """There is none."""
        raise Refused("no run is chosen")

    def close(self) -> None:
        """Nothing to let go."""


def look_around(scene: Scene, choices: Choices | None) -> None:
    """How the runs stand now, where their screen is open."""
    if scene.screen == RUNS and choices is not None:
        scene.runs = choices.poll()


def known_names(choices: Choices | None, but: str) -> list[str]:
    """What other runs of this host go by: by name, by id where a name is that of several."""
    runs = [] if choices is None else [each for each in choices.poll() if each.info.id != but]
    names = [each.info.name for each in runs]
    named = [
        name if names.count(name) == 1 and plain(name) == name else each.info.id
        for name, each in zip(names, runs, strict=True)
    ]
    return named[:_OFFERED]


def picked(scene: Scene, choices: Choices | None) -> RunSession | str:
    """A session on the selected run, or why there is none."""
    from tuimon.tui.panels.runs import selected_run

    run = selected_run(scene)
    if run is None or choices is None:
        return "no run to choose so far"
    if run.info.id == scene.frame.run_id:
        return f"{run.info.name} is the one that is shown"
    return choices.open_run(run)


def fresh(scene: Scene) -> Scene:
    """The scene of another run: what was chosen of the picture stays, what is of a run does not."""
    return Scene(
        Frame(),
        scene.look,
        readonly=scene.readonly,
        price_per_hour=scene.price_per_hour,
        sizes=scene.sizes,
        revision=scene.revision + 1,
    )
