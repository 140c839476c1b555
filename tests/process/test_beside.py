"""Two real runs of this host in one picture: the second one by name, and only to be read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.process.stand_in import PATIENCE_S, StandIn, until
from tuimon.errors import NoSuchRun, Refused
from tuimon.model.commands import Pause
from tuimon.tui.draw.chart import draw_chart
from tuimon.tui.draw.theme import Look
from tuimon.tui.scene import Scene
from tuimon.tui.second import SecondRun
from tuimon.tui.start import beside
from tuimon.view.session import watch_run


def test_a_run_is_laid_over_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    one, other = StandIn(), StandIn()
    session = watch_run(one.run_id)
    second = SecondRun(beside, other.run_id)
    try:
        one.order("steps 5")
        other.order("steps 20")
        scene = Scene(until(session, lambda frame: frame.step == 4), Look())
        deadline = time.monotonic() + PATIENCE_S
        while scene.other is None or scene.other.step != 19:
            assert time.monotonic() < deadline and not second.tick(scene)
            time.sleep(0.01)
        assert scene.other.run_id == other.run_id != scene.frame.run_id
        rows = draw_chart(scene, "loss", 80, 12, focused=True)
        top = "".join(part.text for part in rows[0])
        assert "1  stand-in 1" in top
        assert second.lay("nobody") and second.name == "nobody"
        while not (problem := second.tick(scene)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "nobody cannot be laid over" in problem
        with pytest.raises(NoSuchRun):
            beside("nobody")
        reader = beside(other.run_id)
        reader.tick()
        with pytest.raises(Refused):
            reader.send(Pause())
        reader.close()
    finally:
        second.close()
        session.close()
        one.end()
        other.end()
