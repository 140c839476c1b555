"""What a replay with a change says about a cause. Plain data; runs nothing."""

from __future__ import annotations

from typing import NamedTuple

from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE, REFUTED
from tuimon.model.units import number
from tuimon.train.trials.changes import Change, told
from tuimon.train.trials.guarding import Guarded
from tuimon.train.trials.replaying import Outcome
from tuimon.train.trials.widening import Widened

MAX_TOLD = 3


class Judgement(NamedTuple):
    """The result of a trial and why, in sentences.

    Attributes:
        is_absent: nothing of what the cause says was there, where it went wrong.
    """

    result: str
    detail: str
    is_absent: bool = False


def judge(watched: Guarded | None, change: Change, outcome: Outcome) -> Judgement:
    """Compare a replay with a change to one without, which was not sound.

    Args:
        watched: what the operation did in the replay without a change; None without operation.
        change: what was changed, with what it found to change.
        outcome: of the replay with the change.
    """
    if watched is not None and not watched.born:
        why = "there nothing went wrong" if watched.seen else "it was not met"
        return Judgement(NO_DIFFERENCE, f"in the replay of the step {why}")
    if outcome.problem:
        return Judgement(NO_DIFFERENCE, outcome.problem)
    if not change.count:
        absent = watched is not None and isinstance(change, Guarded)
        return Judgement(NO_DIFFERENCE, "nothing of that kind was there to be changed", absent)
    if isinstance(change, Widened) and outcome.is_sound and change.largest <= change.beyond:
        detail = f"the step is finite then, though nothing there is larger than {change.largest:g}"
        return Judgement(NO_DIFFERENCE, detail)
    if outcome.is_sound:
        loss = "" if outcome.loss is None else f" (loss {number(outcome.loss)})"
        detail = f"with that the step is finite{loss}; without it, it is not"
        if isinstance(change, Guarded) and change.replaced.words:
            detail += f"; it was given {change.replaced.words}"
        if isinstance(change, Widened):
            detail += f"; the largest result there is {number(change.largest)}"
        return Judgement(CONFIRMED, detail)
    left = ", ".join(outcome.bad[:MAX_TOLD])
    left += f" and {len(outcome.bad) - MAX_TOLD} more" if len(outcome.bad) > MAX_TOLD else ""
    if isinstance(change, Guarded) and not change.born:
        detail = f"the operation is sound then, but something else is not: {left}"
        return Judgement(NO_DIFFERENCE, detail)
    changed = f"{told(change.count)} changed, and still not finite: {left}"
    return Judgement(REFUTED if isinstance(change, Guarded) else NO_DIFFERENCE, changed)
