"""The run that is laid over the charts: found, drained, let go of beside the one that is shown."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tuimon.errors import TuimonError
from tuimon.tui.bridge import RunSession
from tuimon.tui.scene import Scene
from tuimon.view.frame import LOADING, OTHER_VERSION, WAITING

OpenRun = Callable[[str], RunSession]


class SecondRun:
    """At most one session that can only be read.

    Opening one may ask another host and so happens in a thread of its own; everything else
    belongs to the thread of the event loop.
    """

    def __init__(self, open_run: OpenRun | None, name: str = "") -> None:
        self.name = name
        self._open_run = open_run
        self._session: RunSession | None = None
        self._coming: tuple[str, RunSession | str] | None = None  # written in one piece
        if name and open_run is not None:
            self._begin(name)

    def lay(self, name: str) -> str:
        """Fetch a run by its name, or take the present one away; what to say, if anything."""
        if self._open_run is None:
            return "this view cannot reach another run"
        if name == self.name and (self._session is not None or not name):
            return ""
        self.name = name
        if not name:
            self.close()
            return "no other run is laid over this one"
        self._begin(name)
        return f"{name} is read"

    def _begin(self, name: str) -> None:
        # A daemon: a host that does not answer must not keep a viewer that wants to leave.
        threading.Thread(target=self._fetch, args=(name,), name="tuimon-other", daemon=True).start()

    def _fetch(self, name: str) -> None:
        assert self._open_run is not None
        try:
            self._coming = name, self._open_run(name)
        except (TuimonError, OSError) as error:
            self._coming = name, str(error)

    def tick(self, scene: Scene) -> str:
        """Bring the newest frame of the other run into the scene; words where it failed."""
        coming, self._coming = self._coming, None
        problem = ""
        if coming is not None:
            name, found = coming
            if isinstance(found, str):
                problem = f"{name} cannot be laid over: {found}"
            elif name != self.name:
                found.close()  # another one was asked for meanwhile
            else:
                self.close()
                self._session = found
        if scene.frozen:
            return problem
        scene.other, scene.other_name = None, ""
        if self._session is not None:
            frame = self._session.tick()
            if frame.state not in (WAITING, LOADING, OTHER_VERSION) or frame.step is not None:
                scene.other, scene.other_name = frame, frame.name or self.name
        return problem

    def close(self) -> None:
        """Let go of it. Safe to call twice."""
        if self._session is not None:
            self._session.close()
            self._session = None
