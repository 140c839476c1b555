"""What the viewer has done when its first picture is there."""

from __future__ import annotations

import gc

from tests.tui.driving import driven
from tests.tui.fake import FakeRun


async def test_garbage_is_looked_for_again_once_there_is_a_picture() -> None:
    gc.disable()
    try:
        async with driven(FakeRun(steps=20).frame()):
            assert gc.isenabled()
    finally:
        gc.enable()
