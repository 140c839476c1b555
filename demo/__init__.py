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


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "explode",
            "explode.py",
            "SGD a little beyond its stability edge: the gradient norm climbs until all is NaN.",
            "Press c and give a max_norm of 1 before step 1,100: the loss comes down again.",
        ),
        Scenario(
            "amp",
            "amp.py",
            "Mixed precision: float16 gradients overflow, updates are skipped, the scale recovers.",
            "Watch the loss scale from step 400 on; there is nothing to treat.",
        ),
        Scenario(
            "nan-batch",
            "nan_batch.py",
            "One NaN in the data at step 600 turns every weight into NaN.",
            "Press space before step 600, then . to walk into it; clipping cannot help.",
        ),
        Scenario(
            "saturated",
            "saturated.py",
            "A loss near 50 and a gradient of exactly 0: a saturated sigmoid, and no NaN at all.",
            "Press c: clipping changes nothing here, because Adam ignores the gradient's scale.",
        ),
    )
}
DEFAULT = "explode"
