"""Detectors: the records of one rank in, symptoms out. One symptom, or one family, a file."""

from __future__ import annotations

from tuimon.diagnose.detectors.course import Course
from tuimon.diagnose.detectors.depth import VanishingGradient
from tuimon.diagnose.detectors.drift import Drift
from tuimon.diagnose.detectors.evaluation import EvalGap
from tuimon.diagnose.detectors.exception import ExceptionRaised
from tuimon.diagnose.detectors.explosion import Explosion
from tuimon.diagnose.detectors.frozen import FrozenParameters
from tuimon.diagnose.detectors.nonfinite_gradient import NonFiniteGradient
from tuimon.diagnose.detectors.nonfinite_loss import NonFiniteLoss
from tuimon.diagnose.detectors.nonfinite_state import NonFiniteState
from tuimon.diagnose.detectors.progress import Progress
from tuimon.diagnose.detectors.ranks import RankDivergence
from tuimon.diagnose.detectors.saturation import SaturatedOutput
from tuimon.diagnose.detectors.spike import Spike
from tuimon.diagnose.detectors.units import DeadUnits
from tuimon.diagnose.incidents import Detector


def default_detectors(rank: int) -> list[Detector]:
    """Every detector there is, but for the AMP ledger, which the engine owns."""
    course = Course()
    return [
        course,
        NonFiniteLoss(rank),
        NonFiniteGradient(rank),
        NonFiniteState(rank),
        ExceptionRaised(rank),
        Drift(course, rank),
        Explosion(course, rank),
        Spike(course, rank),
        FrozenParameters(course, rank),
        VanishingGradient(course, rank),
        DeadUnits(course, rank),
        SaturatedOutput(course, rank),
        Progress(course, rank),
        EvalGap(course, rank),
        RankDivergence(rank),
    ]
