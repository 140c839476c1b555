"""From symptoms to causes: one file a family, each offering rules; `RULES` is all of them.

A rule reads `Evidence` and answers with findings; it keeps no state and may abstain.
"""

from __future__ import annotations

from tuimon.diagnose.evidence import Rule
from tuimon.diagnose.rules.clipping import ClippedByInfinity
from tuimon.diagnose.rules.continuing import Resumed
from tuimon.diagnose.rules.crashing import Crashing
from tuimon.diagnose.rules.derivatives import Derivatives
from tuimon.diagnose.rules.fed import DataScale, Outlier, Poisoned
from tuimon.diagnose.rules.growing import Growing
from tuimon.diagnose.rules.leaping import Leaping
from tuimon.diagnose.rules.leaves import Leaves, Updates
from tuimon.diagnose.rules.misusing import Misuse
from tuimon.diagnose.rules.normalising import Lone, RunningStatistics
from tuimon.diagnose.rules.operations import Operations
from tuimon.diagnose.rules.parallel import Desync
from tuimon.diagnose.rules.replaying import Disagreeing
from tuimon.diagnose.rules.scaling import NormalisationState, ScalerCollapse, ScalerOrder
from tuimon.diagnose.rules.schedules import Schedules
from tuimon.diagnose.rules.spiking import Spiking
from tuimon.diagnose.rules.stalling import Blocked, Faint, Frozen, Plateau
from tuimon.diagnose.rules.standing import Standing
from tuimon.diagnose.rules.starting import Beginnings
from tuimon.diagnose.rules.wiring import Unreached, ZeroGrad

RULES: tuple[Rule, ...] = (
    Operations(),
    Derivatives(),
    Leaves(),
    Updates(),
    Crashing(),
    Growing(),
    Leaping(),
    Frozen(),
    Faint(),
    Misuse(),
    Blocked(),
    Plateau(),
    Standing(),
    Schedules(),
    Spiking(),
    ScalerOrder(),
    ScalerCollapse(),
    NormalisationState(),
    RunningStatistics(),
    Lone(),
    ZeroGrad(),
    Unreached(),
    DataScale(),
    Outlier(),
    Poisoned(),
    Beginnings(),
    Resumed(),
    ClippedByInfinity(),
    Desync(),
    Disagreeing(),
)
