"""What tests of processes share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

LIGHT = str(Path(__file__).parent / "light")


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that make an optimizer start in half the time; see `light/sitecustomize.py`.

    Not for trainings with an autopsy, which asks for the real module in the midst of an update.
    """
    places = filter(None, (LIGHT, os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
