"""What torch says when it refuses a step, raised here, and the cause that its words stand for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.rules.crashing import Crashing
from tuimon.model.crash import Crash

ROWS, COLUMN = torch.zeros(4), torch.zeros(4, 1)
SCORES = torch.zeros(4, 3)


def told(run: Callable[[], object]) -> list[str]:
    with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
        run()
    circumstances = Circumstances()
    kind, message = type(raised.value).__name__, str(raised.value)
    circumstances.see(Crash(3, 0, kind=kind, message=message))
    return [f.cause for f in Crashing().conclude(Evidence((), None, "none", (), circumstances))]


@pytest.mark.parametrize(
    "run",
    [
        lambda: F.binary_cross_entropy_with_logits(COLUMN, ROWS),
        lambda: F.binary_cross_entropy(COLUMN, ROWS),
        lambda: F.cross_entropy(SCORES, torch.zeros(4, 1, dtype=torch.long)),
        lambda: F.cross_entropy(SCORES, torch.zeros(3, dtype=torch.long)),
        lambda: F.cross_entropy(torch.zeros(4, 3, 5), torch.zeros(4, 1, dtype=torch.long)),
        lambda: F.cross_entropy(torch.zeros(4, 3, 5, 5), torch.zeros(4, dtype=torch.long)),
    ],
)
def test_a_target_of_another_shape(run: Callable[[], object]) -> None:
    assert told(run) == ["loss-api"]


@pytest.mark.parametrize(
    "run",
    [
        lambda: SCORES @ SCORES,  # shapes of the model's own
        lambda: torch.cat([SCORES, torch.zeros(4, 2)]),
        lambda: SCORES.view(5, 5),
    ],
)
def test_shapes_that_are_no_fault_of_a_loss(run: Callable[[], object]) -> None:
    assert told(run) == []
