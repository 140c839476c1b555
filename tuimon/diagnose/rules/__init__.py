"""From symptoms to causes: one file a family, each offering rules; `RULES` is all of them.

A rule reads `Evidence` and answers with findings; it keeps no state and may abstain.
"""

from __future__ import annotations

from tuimon.diagnose.evidence import Rule
from tuimon.diagnose.rules.crashing import Crashing
from tuimon.diagnose.rules.derivatives import Derivatives
from tuimon.diagnose.rules.growing import Growing
from tuimon.diagnose.rules.leaves import Leaves, Updates
from tuimon.diagnose.rules.operations import Operations
from tuimon.diagnose.rules.scaling import NormalisationState, ScalerCollapse, ScalerOrder
from tuimon.diagnose.rules.spiking import Spiking
from tuimon.diagnose.rules.stalling import Blocked, Faint, Frozen, Misuse, Plateau
from tuimon.diagnose.rules.standing import Standing

RULES: tuple[Rule, ...] = (
    Operations(),
    Derivatives(),
    Leaves(),
    Updates(),
    Crashing(),
    Growing(),
    Frozen(),
    Faint(),
    Misuse(),
    Blocked(),
    Plateau(),
    Standing(),
    Spiking(),
    ScalerOrder(),
    ScalerCollapse(),
    NormalisationState(),
)
