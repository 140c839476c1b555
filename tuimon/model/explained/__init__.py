"""What each cause of the taxonomy is, why it happens and what helps, in words and as code."""

from __future__ import annotations

from tuimon.model.explained.data import DATA
from tuimon.model.explained.dynamics import DYNAMICS
from tuimon.model.explained.entry import Explanation as Explanation
from tuimon.model.explained.numerics import NUMERICS
from tuimon.model.explained.precision import PRECISION
from tuimon.model.explained.wiring import WIRING

EXPLAINED: dict[str, Explanation] = DYNAMICS | NUMERICS | PRECISION | DATA | WIRING
