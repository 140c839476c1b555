"""Ordinary training scripts in real trouble, and the table that `tuimon demo` offers.

The scripts know nothing of tuimon; this table is plain data and imports nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Scenario(NamedTuple):
    """One script that can be watched and treated."""

    name: str
    script: str  # file beside this one
    about: str  # one sentence: what will be seen
    hint: str  # one sentence: what to do about it

    @property
    def path(self) -> Path:
        """Where the script lies, in a checkout and in an installed wheel alike."""
        return Path(__file__).parent / self.script


SCENARIOS: dict[str, Scenario] = {}
DEFAULT = "explode"
