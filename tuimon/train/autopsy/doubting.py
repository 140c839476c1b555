"""Which updates that a GradScaler leaves out are worth a look, and whose fault they turn out to be.

A scaler leaves updates out to find its scale, and calls everything an overflow of its own. It is
none where the scale had fitted before, or where nothing is infinite and yet something is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuimon.model.autopsy import FORWARD, LEAF, OPERATION

if TYPE_CHECKING:
    from tuimon.train.stats import Measured

# Updates made at a scale, or at a larger one, that show that it fits.
FITTED = 8
MAX_LOOKS = 3  # of a run, each a forward and two backwards at an update that is left out anyway
MAX_SCALES = 64


class Doubts:
    """What is known of the scales of a run. Used by the training thread only."""

    def __init__(self) -> None:
        self._made: dict[float, int] = {}
        self._looks = 0

    def made(self, scale: float | None) -> None:
        """An update is about to be made from finite gradients at this scale."""
        if scale is None:
            return
        if scale not in self._made and len(self._made) >= MAX_SCALES:
            self._made.clear()
        self._made[scale] = self._made.get(scale, 0) + 1

    def arises(self, scale: float | None, measured: Measured | None) -> bool:
        """An update is about to be left out: whether it is to be looked into; counts the looks."""
        if scale is None or self._looks >= MAX_LOOKS:
            return False
        fitted = sum(count for known, count in self._made.items() if known >= scale) >= FITTED
        if not fitted and not _is_nan_alone(measured):
            return False
        self._looks += 1
        return True


def is_its_own(fields: Mapping[str, Any]) -> bool:
    """Whether what an examination found is there without the scale too.

    Where that could not be tried: a scale that is too large makes infinities out of finite numbers,
    no NaN, and comes after the forward, in which an infinity may be meant and a NaN is not.
    """
    first = fields.get("first")
    if fields.get("verdict") not in (OPERATION, LEAF) or first is None:
        return False
    at_scale_1: bool | None = fields.get("bad_at_scale_1")
    if at_scale_1 is not None:
        return at_scale_1
    sites = [first, *(site for site in fields.get("path", ()) if site.phase == FORWARD)]
    return any(note.nan for site in sites for note in site.outputs)


def _is_nan_alone(measured: Measured | None) -> bool:
    """Whether gradients hold NaN and none an infinity, as far as all of them were counted."""
    if measured is None or not measured.bad or len(measured.bad) < measured.bad_total:
        return False
    return not any(each.posinf or each.neginf for each in measured.bad)
