"""From symptoms to causes: one file a family, each offering rules; `RULES` is all of them.

A rule reads `Evidence` and answers with findings; it keeps no state and may abstain.
"""

from __future__ import annotations

from tuimon.diagnose.evidence import Rule
from tuimon.diagnose.rules.derivatives import Derivatives
from tuimon.diagnose.rules.leaves import Leaves, Updates
from tuimon.diagnose.rules.operations import Operations

RULES: tuple[Rule, ...] = (Operations(), Derivatives(), Leaves(), Updates())
