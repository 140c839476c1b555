"""Detectors: the records of one rank in, symptoms out. One symptom, or one family, a file."""

from __future__ import annotations

from tuimon.diagnose.detectors.exception import ExceptionRaised
from tuimon.diagnose.detectors.nonfinite_gradient import NonFiniteGradient
from tuimon.diagnose.detectors.nonfinite_loss import NonFiniteLoss
from tuimon.diagnose.detectors.nonfinite_state import NonFiniteState
from tuimon.diagnose.incidents import Detector


def default_detectors(rank: int) -> list[Detector]:
    """Every detector there is, but for the AMP ledger, which the engine owns."""
    return [
        NonFiniteLoss(rank),
        NonFiniteGradient(rank),
        NonFiniteState(rank),
        ExceptionRaised(rank),
    ]
