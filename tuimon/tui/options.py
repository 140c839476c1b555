"""How the viewer was started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tuimon.tui.keeping import Remember
from tuimon.tui.picking import Choices
from tuimon.tui.second import OpenRun
from tuimon.tui.signs import SignOptions
from tuimon.view.frame import Frame
from tuimon.view.kept import Kept


@dataclass(frozen=True)
class ViewerOptions:
    """How the viewer was started."""

    readonly: bool = False
    replays: bool = False  # the session plays a recording
    hz: float = 10.0
    price_per_hour: float | None = None
    choices: Choices | None = None  # of the runs of this host
    picks_first: bool = False  # begins with the list of them
    open_run: OpenRun | None = None  # another run by its name, to lay over the charts
    other: str = ""  # the run that is laid over from the beginning
    signs: SignOptions = field(default_factory=SignOptions)
    folder: Path = Path()  # where an incident is written to
    kept: Kept = field(default_factory=Kept)  # what was chosen before
    problem: str = ""  # why it is not used, to be said once
    remember: Remember = lambda **fields: None  # may raise OSError
    dump_folder: Callable[[Frame], str] = lambda frame: f"/tmp/tuimon-dump-{frame.pid}"
