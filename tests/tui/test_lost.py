"""What was lost is counted on the screen, with its reason."""

from __future__ import annotations

from dataclasses import replace

from tests.tui.fake import FakeRun
from tuimon.tui.once import render_once


def test_the_reason_stands_beside_the_count() -> None:
    frame = FakeRun(steps=20, blocks=1).frame()
    assert "lost 0" in render_once(frame, 120, 40)
    frame = replace(frame, lost={"overrun": 37, "torn": 2})
    assert "lost 39 overrun, …" in render_once(frame, 120, 40)
