"""Which rank the others wait for, by the times of steps that all of them have made.

Data-parallel ranks all take the same time for a step, because the fast ones wait within backward
for the gradients of the slowest. What tells them apart is the part before: waits for data and the
forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from tuimon.diagnose.incidents import PRIMARY
from tuimon.model.records import Step

WINDOW_STEPS = 40
ENOUGH_STEPS = 16  # that all ranks have made
TIMES = 1.3  # the others' own part
OF_STEP = 0.05  # of the step: less is not worth a word
MOST = 0.75  # of the steps; a rank that is slow now and then is no straggler
AFTER_LOOKS = 2  # in a row; one look may fall on an evaluation


@dataclass(frozen=True)
class Straggler:
    """A rank that holds up the others; medians over the steps that were looked at."""

    rank: int
    own_s: float
    others_s: float
    step_s: float
    step: int

    @property
    def words(self) -> str:
        """What was measured, as a sentence about it."""
        return (
            f"the other ranks wait for it: its data and forward take {self.own_s * 1e3:.3g} ms of "
            f"a step of {self.step_s * 1e3:.3g} ms, those of the others "
            f"{self.others_s * 1e3:.3g} ms"
        )


class Stragglers:
    """Takes in the steps of all ranks; looks when it is asked to."""

    def __init__(self) -> None:
        self._steps: dict[int, deque[Step]] = {}
        self._suspect: tuple[int, int] | None = None  # rank, looks in a row
        self._looked_at: int | None = None
        self.now: Straggler | None = None

    def add(self, rank: int, record: Step) -> None:
        """One update of a rank."""
        if record.optimizer == PRIMARY and own_s(record) is not None:
            steps = self._steps.setdefault(rank, deque(maxlen=WINDOW_STEPS))
            steps.append(record)

    def times(self, rank: int) -> tuple[float | None, float | None]:
        """(time of a step, own part of it) of a rank, medians over its newest steps."""
        steps = self._steps.get(rank, ())
        whole = [step.step_s for step in steps if step.step_s is not None]
        own = [part for step in steps if (part := own_s(step)) is not None]
        return (median(whole) if whole else None), (median(own) if own else None)

    def look(self, ranks: Collection[int]) -> Straggler | None:
        """Judge the living ranks; the straggler when there is a new one."""
        found = self._find(ranks)
        if found is not None and found.step == self._looked_at:
            return None  # nothing new to judge by
        self._looked_at = None if found is None else found.step
        before = self._suspect
        if found is None:
            self._suspect = self.now = None
            return None
        looks = before[1] + 1 if before is not None and before[0] == found.rank else 1
        self._suspect = found.rank, looks
        if looks < AFTER_LOOKS:
            return None
        is_new = self.now is None or self.now.rank != found.rank
        self.now = found
        return found if is_new else None

    def _find(self, ranks: Collection[int]) -> Straggler | None:
        by_rank = {rank: {step.step: step for step in self._steps.get(rank, ())} for rank in ranks}
        if len(by_rank) < 2:
            return None
        shared = sorted(set.intersection(*(set(steps) for steps in by_rank.values())))
        if len(shared) < ENOUGH_STEPS:
            return None
        own = {
            rank: [own_s(steps[step]) or 0.0 for step in shared] for rank, steps in by_rank.items()
        }
        slowest = max(own, key=lambda rank: median(own[rank]))
        others = [parts for rank, parts in own.items() if rank != slowest]
        ahead = [max(parts) for parts in zip(*others, strict=True)]
        mine_s, others_s = median(own[slowest]), max(map(median, others))
        whole = [steps[shared[-1]].step_s or 0.0 for steps in by_rank.values()]
        whole_s = max(self.times(slowest)[0] or 0.0, mine_s, min(whole))
        often = sum(m > o for m, o in zip(own[slowest], ahead, strict=True)) / len(shared)
        if mine_s < TIMES * others_s or mine_s - others_s < OF_STEP * whole_s or often < MOST:
            return None
        return Straggler(slowest, mine_s, others_s, whole_s, shared[-1])


def own_s(record: Step) -> float | None:
    """Seconds of a step before its backward, which nobody else has a part in; None if unknown."""
    if record.forward_s is None:
        return None
    return record.forward_s + (record.data_s or 0.0)
